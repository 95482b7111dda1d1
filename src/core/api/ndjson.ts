import { Readable } from 'node:stream'
import { type Context, type OperationResult, streamResult } from './operation.ts'

type Lines<Row> = {
  /** Returns at most `pageSize` rows after a row (null: from the first); fewer rows end the response. */
  read: (after: Row | null, pageSize: number) => Promise<readonly Row[]>
  pageSize: number
  present: (row: Row) => object
}

/**
 * Returns a response of one JSON object per line. Pages are read as the client consumes them, so memory stays bounded. Once
 * the caller's permission is revoked, no further page is sent. A failure truncates the response, without the final newline
 * of a complete one.
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
