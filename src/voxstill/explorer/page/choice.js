// What is chosen, as it stands in the address.

const MAX_TEXT = 200, MAX_VALUES = 100;

export const nothing = () => ({ text: "", where: new Map(), order: "", descending: false });

/** The fragment of the address for a choice; empty where nothing is chosen. */
export function toHash({ text, where, order, descending }) {
  if (!text && !where.size && !order) return "";
  return `#${encodeURIComponent(JSON.stringify({ text, where: [...where.values()], order, descending }))}`;
}

/** The choice in the fragment of an address, without what is damaged or not known; null where it is not JSON at all. */
export function fromHash(hash, columns) {
  const choice = nothing();
  if (hash.length < 2) return choice;
  let tree;
  try {
    tree = JSON.parse(decodeURIComponent(hash.slice(1)));
  } catch { return null; }
  if (tree === null || typeof tree !== "object") return null;
  if (isText(tree.text) && tree.text.length <= MAX_TEXT) choice.text = tree.text.trim();
  const conditions = (Array.isArray(tree.where) ? tree.where : []).map((one) => condition(one, columns));
  choice.where = new Map(conditions.filter(Boolean).map((one) => [one.column, one]));
  if (columns.has(tree.order) && columns.get(tree.order).kind !== "text") choice.order = tree.order;
  choice.descending = tree.descending === true;
  return choice;
}

function condition(tree, columns) {
  const column = columns.get(tree?.column);
  if (!column) return null;
  if (Array.isArray(tree.in)) {
    const values = tree.in.filter((value) => fits(column, value));
    return values.length && values.length <= MAX_VALUES ? { column: column.name, in: values } : null;
  }
  if (column.kind !== "number") return null;
  const [min, max] = [tree.min, tree.max].map((end) => (Number.isFinite(end) ? end : null));
  return min === null && max === null ? null : { column: column.name, min, max };
}

function fits({ kind }, value) {
  if (value === null) return true;
  if (kind === "flag") return typeof value === "boolean";
  return kind === "number" ? Number.isFinite(value) : isText(value);
}

const isText = (value) => typeof value === "string" && value.isWellFormed();
