"""The test split of KernelBench that results are compared on: 20, 20 and 10 tasks of levels 1, 2 and 3, by name.

Names, since numbers have moved between versions of the benchmark. Tasks outside of it may be trained on.
"""

from __future__ import annotations

import re

TEST: dict[int, tuple[str, ...]] = {
    1: (
        "Standard_matrix_multiplication",
        "Batched_matrix_multiplication",
        "3D_tensor_matrix_multiplication",
        "Matmul_for_lower_triangular_matrices",
        "ReLU",
        "Softplus",
        "Softsign",
        "InstanceNorm",
        "GroupNorm",
        "Sum_reduction_over_a_dimension",
        "Mean_reduction_over_a_dimension",
        "Argmax_over_a_dimension",
        "conv_transposed_3D__square_input__square_kernel",
        "conv_standard_2D__square_input__asymmetric_kernel",
        "conv_transposed_1D",
        "conv_transposed_3D__square_input__asymmetric_kernel",
        "conv_depthwise_2D_asymmetric_input_square_kernel",
        "conv_depthwise_2D_asymmetric_input_asymmetric_kernel",
        "masked_cumsum",
        "CrossEntropyLoss",
    ),
    2: (
        "Conv2D_ReLU_BiasAdd",
        "ConvTranspose3d_Sum_LayerNorm_AvgPool_GELU",
        "Conv3d_Softmax_MaxPool_MaxPool",
        "ConvTranspose2d_MaxPool_Hardtanh_Mean_Tanh",
        "ConvTranspose3d_Mean_Add_Softmax_Tanh_Scaling",
        "ConvTranspose3d_Sum_ResidualAdd_Multiply_ResidualAdd",
        "Conv2d_Add_Scale_Sigmoid_GroupNorm",
        "Conv3d_GroupNorm_Mean",
        "Conv2d_Min_Add_Multiply",
        "ConvTranspose3d_LayerNorm_GELU_Scaling",
        "ConvTranspose2d_Multiply_GlobalAvgPool_GlobalAvgPool_Mean",
        "Conv3d_Mish_Tanh",
        "Gemm_Scaling_Hardtanh_GELU",
        "Matmul_MaxPool_Sum_Scale",
        "Matmul_Swish_Scaling",
        "Gemm_ReLU_Divide",
        "Matmul_Min_Subtract",
        "Gemm_Max_Subtract_GELU",
        "Conv2d_GroupNorm_Scale_MaxPool_Clamp",
        "Conv2d_Subtract_Subtract_Mish",
    ),
    3: (
        "ShallowWideMLP",
        "SqueezeNet",
        "MobileNetV1",
        "EfficientNetMBConv",
        "EfficientNetB0",
        "EfficientNetB1",
        "EfficientNetB2",
        "ConvolutionalVisionTransformer",
        "LSTMBidirectional",
        "GRU",
    ),
}
"""Names without numbers, as the benchmark's files have them."""


def plain(name: str) -> str:
    """A task's name without its number, its file's ending and underscores at the ends, for comparing."""
    stem = re.sub(r"\.py$", "", name)
    stem = re.sub(r"^(kb\d+_)?\d+_", "", stem)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_").lower()


def in_test_split(level: int) -> frozenset[str]:
    """The names of a level's test tasks as ``plain`` gives them; empty for a level without a test split."""
    return frozenset(plain(name) for name in TEST.get(level, ()))
