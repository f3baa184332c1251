"""What is exported, as torch modules: encoders with all that a runtime may not know of in the graph.

The normalisation of log-mels is part of the graph, so padding of any value and features that a runtime has normalised
already change nothing, and the level of speech (`student.normalization: level`) is set where a runtime knows nothing of
it. From samples the frontend is part of it, too: its Fourier transform is a convolution, which every runtime has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend, WaveformFrontend
from voxstill.nn.log_mel import LogMel, feature_frames, frame_mask
from voxstill.nn.mel import HOP, LOG_FLOOR, NUM_FFT, PREEMPHASIS, SUBSAMPLING, WINDOW

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CtcFromMels(nn.Module):
    """A CTC student on log-mels (B, D, F) and their frames (B,): log-probabilities (B, F', V)."""

    def __init__(self, model: PreTrainedModel, frontend: LogMelFrontend) -> None:
        super().__init__()
        self.model, self.log_mel = model, frontend.log_mel

    def forward(self, mel_BDF: Tensor, frames_B: Tensor) -> Tensor:
        """Normalise, and compute log-probabilities."""
        features_BFD = _normalised(self.log_mel, mel_BDF, frames_B)
        mask_BF = frame_mask(frames_B, features_BFD.shape[1])
        logits_BFV: Tensor = self.model(input_features=features_BFD, attention_mask=mask_BF).logits
        return logits_BFV.log_softmax(-1)


class EncoderFromMels(nn.Module):
    """The encoder of a transducer on log-mels (B, D, F) and their frames (B,): states (B, P, F') and frames (B,)."""

    def __init__(self, model: PreTrainedModel, frontend: LogMelFrontend) -> None:
        super().__init__()
        self.model, self.log_mel = model, frontend.log_mel

    def forward(self, mel_BDF: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise, and encode."""
        features_BFD = _normalised(self.log_mel, mel_BDF, frames_B)
        mask_BF = frame_mask(frames_B, features_BFD.shape[1])
        encoded = self.model.get_audio_features(input_features=features_BFD, attention_mask=mask_BF)
        return encoded.pooler_output.transpose(1, 2), _output_frames(frames_B)


class FromSamples(nn.Module):
    """A model on log-mels with its frontend before it: float samples (B, T) of full scale 1, and their number (B,).

    Frames (B,) are the last output.
    """

    cos_sin_N1T: Tensor

    def __init__(self, from_mels: CtcFromMels | EncoderFromMels) -> None:
        super().__init__()
        self.from_mels = from_mels
        place_T = torch.arange(WINDOW, dtype=torch.float64) + (NUM_FFT - WINDOW) // 2
        angle_NT = 2 * math.pi * torch.arange(NUM_FFT // 2 + 1, dtype=torch.float64)[:, None] * place_T / NUM_FFT
        window_T = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64)
        cos_sin_NT = torch.cat([torch.cos(angle_NT) * window_T, torch.sin(angle_NT) * window_T])
        self.register_buffer("cos_sin_N1T", cos_sin_NT[:, None].float())

    def forward(self, wave_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, ...]:
        """Compute log-mels as `LogMel.unnormalised` does, and what the model makes of them."""
        own_BT = torch.arange(wave_BT.shape[1])[None] < audio_len_B[:, None]
        emphasised_BT = torch.cat([wave_BT[:, :1], wave_BT[:, 1:] - PREEMPHASIS * wave_BT[:, :-1]], dim=1) * own_BT
        padded_B1T = functional.pad(emphasised_BT[:, None], (WINDOW // 2, WINDOW // 2))
        cos_sin_BNF = functional.conv1d(padded_B1T, self.cos_sin_N1T, stride=HOP)[:, :, : wave_BT.shape[1] // HOP]
        real_BNF, imaginary_BNF = cos_sin_BNF.chunk(2, dim=1)
        power_BNF = real_BNF.square() + imaginary_BNF.square()
        mel_BDF = torch.log(self.from_mels.log_mel.mels_DN @ power_BNF + LOG_FLOOR)
        frames_B = feature_frames(audio_len_B)
        output = self.from_mels(mel_BDF, frames_B)
        return output if isinstance(output, tuple) else (output, _output_frames(frames_B))


class CtcFromWaveform(nn.Module):
    """A wav2vec 2.0 or its kin on one waveform (1, T): logits (1, F, V), the blank first.

    The waveform is normalised in the graph where the model needs it, so it may be of any scale.
    """

    def __init__(self, model: PreTrainedModel, frontend: WaveformFrontend) -> None:
        super().__init__()
        self.model, self.frontend = model, frontend
        blank_id = students.blank_id(model)
        self.order = [blank_id, *(id_ for id_ in range(model.config.vocab_size) if id_ != blank_id)]

    def forward(self, wave_BT: Tensor) -> Tensor:
        """Normalise, and compute log-probabilities."""
        len_B = torch.ones_like(wave_BT[:, 0]).long() * wave_BT.shape[1]
        inputs_BT, _ = self.frontend.extract(wave_BT, len_B)
        logits_BFV: Tensor = self.model(input_values=inputs_BT).logits
        return logits_BFV[..., self.order].log_softmax(-1)


class Predictor(nn.Module):
    """The predictor of a transducer as NeMo exports it: tokens (B, U) and the LSTM's memory, to states (B, P, U)."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens_BU: Tensor, num_B: Tensor, hidden_LBH: Tensor, cell_LBH: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Predict."""
        states_BUP, (hidden_LBH, cell_LBH) = students.predict(self.model, tokens_BU.long(), (hidden_LBH, cell_LBH))
        return states_BUP.transpose(1, 2), num_B + 0, hidden_LBH, cell_LBH


class Joiner(nn.Module):
    """The joint of a transducer: encoder states (B, P, F) and predictor states (B, P, U), to logits (B, F, U, V)."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoded_BPF: Tensor, predicted_BPU: Tensor) -> Tensor:
        """Join each frame with each state."""
        encoded_BF1P, predicted_B1UP = encoded_BPF.transpose(1, 2)[:, :, None], predicted_BPU.transpose(1, 2)[:, None]
        return students.joint(self.model, encoded_BF1P, predicted_B1UP)


class PredictorAndJoiner(nn.Module):
    """Both in one file, as onnx-asr takes them."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.predictor, self.joiner = Predictor(model), Joiner(model)

    def forward(
        self, encoded_BPF: Tensor, tokens_BU: Tensor, num_B: Tensor, hidden_LBH: Tensor, cell_LBH: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Predict and join."""
        predicted_BPU, num_B, hidden_LBH, cell_LBH = self.predictor(tokens_BU, num_B, hidden_LBH, cell_LBH)
        return self.joiner(encoded_BPF, predicted_BPU), num_B, hidden_LBH, cell_LBH


def _normalised(log_mel: LogMel, mel_BDF: Tensor, frames_B: Tensor) -> Tensor:
    """Normalised features (B, F, D); what stands in the padding is not read."""
    mel_BFD = mel_BDF.transpose(1, 2)
    own_BF1 = frame_mask(frames_B, mel_BFD.shape[1])[..., None]
    return log_mel.normalise(mel_BFD.masked_fill(~own_BF1, 0.0), frames_B)


def _output_frames(frames_B: Tensor) -> Tensor:
    """`output_frames` without a negative division, which a tracer rounds to zero."""
    return (frames_B + (SUBSAMPLING - 1)) // SUBSAMPLING
