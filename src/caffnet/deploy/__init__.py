"""Trained models outside Python: as C, as an ONNX file, as an AOTInductor package for C++.

    from caffnet.deploy import to_c, to_onnx, to_aot

docs/guides/deployment.md says which one to choose, with measurements.
"""

from caffnet.deploy.aot import to_aot
from caffnet.deploy.c import to_c
from caffnet.deploy.onnx import onnx_library, to_onnx

__all__ = ["onnx_library", "to_aot", "to_c", "to_onnx"]
