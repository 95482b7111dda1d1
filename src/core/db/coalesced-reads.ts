import { AsyncLocalStorage } from 'node:async_hooks'
import { batchByKey } from './batcher.ts'
import { withoutTenantLimit } from './tenant-context.ts'

/**
 * Returns a function that merges concurrent reads of the same key. A running read is not joined but followed by one
 * more, so that each caller sees everything committed before its call. The first read starts at the end of the turn of
 * the event loop.
 */
export function coalescedReads<T>(): (key: string, read: () => Promise<T>) => Promise<T> {
  const add = batchByKey<string, () => Promise<T>, T>(async (_key, reads) => {
    const value = await reads[0]()
    return reads.map(() => value)
  })
  return (key, read) =>
    add(
      key,
      AsyncLocalStorage.bind(() => withoutTenantLimit(read)),
    )
}
