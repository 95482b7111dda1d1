import { Readable } from 'node:stream'
import { type Context, type OperationResult, streamResult } from './operation.ts'

type Lines<Row> = {
  /** Reads the rows after one (null: from the first), at most `pageSize`; fewer end the answer. */
  read: (after: Row | null, pageSize: number) => Promise<readonly Row[]>
  pageSize: number
  present: (row: Row) => object
}

/**
 * An answer of one JSON object a line. Pages are read as the client takes them, so memory stays bounded. A caller who loses
 * its rights in the meantime gets no further page. A failure half way breaks the answer off, without the newline that ends
 * a whole one.
 */
export function ndjsonStream<Row>(
  context: Pick<Context, 'services' | 'recheck'>,
  lines: Lines<Row>,
  headers?: Record<string, string>,
): OperationResult {
  return streamResult('application/x-ndjson', Readable.from(chunks(context, lines), { objectMode: false }), headers)
}

async function* chunks<Row>(
  { services, recheck }: Pick<Context, 'services' | 'recheck'>,
  { read, pageSize, present }: Lines<Row>,
): AsyncGenerator<string> {
  const { STREAM_PING_INTERVAL_MS } = services.config
  let checkedAt = Date.now()
  let last: Row | null = null
  for (;;) {
    if (Date.now() - checkedAt >= STREAM_PING_INTERVAL_MS) {
      await recheck()
      checkedAt = Date.now()
    }
    const rows: readonly Row[] = await read(last, pageSize)
    if (rows.length > 0) yield `${last ? '\n' : ''}${rows.map(row => JSON.stringify(present(row))).join('\n')}`
    last = rows.at(-1) ?? last
    if (rows.length < pageSize) break
  }
  if (last) yield '\n'
}
