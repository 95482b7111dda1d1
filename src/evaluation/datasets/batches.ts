import { MAX_PAGE_BYTES } from '../../core/api/lists.ts'

/** Values in batches of so many, and of what one answer may show, beside one that is larger alone: an item has up to 5 MiB. */
export async function* inBatches<T>(
  values: AsyncIterable<T> | Iterable<T>,
  most: number,
  bytesOf: (value: T) => number,
): AsyncGenerator<T[]> {
  let batch: T[] = []
  let bytes = 0
  for await (const value of values) {
    const size = bytesOf(value)
    if (batch.length === most || (batch.length > 0 && bytes + size > MAX_PAGE_BYTES)) {
      yield batch
      batch = []
      bytes = 0
    }
    batch.push(value)
    bytes += size
  }
  if (batch.length > 0) yield batch
}
