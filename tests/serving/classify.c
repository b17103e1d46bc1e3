/* Labels images by TensorFlow's C API, as a server without Python does.

   classify SAVED_MODEL INPUT_OPERATION OUTPUT_OPERATION OUTPUT_INDEX IMAGES HEIGHT WIDTH CHANNELS

   IMAGES holds uint8 pixels, one image after another. Prints a label a line. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { BATCH = 128 };

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void check(TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) fail(TF_Message(status));
}

int main(int argc, char** argv) {
  if (argc != 9) fail("expected 8 arguments");
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(status);
  TF_Output input = {TF_GraphOperationByName(graph, argv[2]), 0};
  TF_Output output = {TF_GraphOperationByName(graph, argv[3]), atoi(argv[4])};
  if (!input.oper || !output.oper) fail("no such operation");

  int64_t shape[4] = {0, atoi(argv[6]), atoi(argv[7]), atoi(argv[8])};
  size_t size = (size_t)(shape[1] * shape[2] * shape[3]);
  FILE* file = fopen(argv[5], "rb");
  uint8_t* pixels = malloc(BATCH * size);
  if (!file || !pixels) fail("no images");
  while ((shape[0] = (int64_t)fread(pixels, size, BATCH, file)) > 0) {
    TF_Tensor* images = TF_AllocateTensor(TF_UINT8, shape, 4, (size_t)shape[0] * size);
    TF_Tensor* labels = NULL;
    memcpy(TF_TensorData(images), pixels, (size_t)shape[0] * size);
    TF_SessionRun(session, NULL, &input, &images, 1, &output, &labels, 1, NULL, 0, NULL, status);
    check(status);
    if (TF_TensorType(labels) != TF_INT64 || TF_Dim(labels, 0) != shape[0]) fail("no labels");
    for (int64_t i = 0; i < shape[0]; ++i)
      printf("%lld\n", (long long)((int64_t*)TF_TensorData(labels))[i]);
    TF_DeleteTensor(images);
    TF_DeleteTensor(labels);
  }
  TF_CloseSession(session, status);
  check(status);
  return 0;
}
