// Answers that are saved as files.

/** Save an answer under a name; `told` says now and then how many bytes have come. */
export async function saved(
  response: Response,
  name: string,
  told: (bytes: number) => void,
): Promise<void> {
  let got = 0;
  const counted = response.body?.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(piece, out) {
        got += piece.length;
        told(got);
        out.enqueue(piece);
      },
    }),
  );
  const blob = await new Response(counted).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replaceAll("/", "_");
  link.click();
  // Some browsers begin to read only after this turn.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
