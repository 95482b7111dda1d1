import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import type { RequestBody, RequestKind } from './request.ts'

/** Log entry of a model request. `status` is null until the response begins. */
export type RequestLog = {
  /** Arrival number, from 1. */
  n: number
  lane: string
  kind: RequestKind
  call: number
  rule_id: string | null
  reply_index: number | null
  status: number | null
  streamed: boolean
  /** Whether the client disconnected before the end of the response. */
  aborted: boolean
  headers: IncomingHttpHeaders
  body: RequestBody
}

/** Filter of requests; `after` is an arrival number. */
export type LogFilter = { lane?: string | undefined; kind?: string | undefined; after?: number | undefined }

/** The request log of one server. */
export type Log = Awaited<ReturnType<typeof openLog>>

const maxEntries = 10_000
/** Old entries are removed in blocks of this size, so that adding stays cheap. */
const slack = 1_000

/** Creates an empty log. With a file, each finished request is also appended to it as a line of JSON. */
export async function openLog(file?: string) {
  let entries: RequestLog[] = []
  let arrivals = 0
  const stream = file === undefined ? undefined : createWriteStream(file, { flags: 'a' })
  if (stream) {
    await once(stream, 'open')
    stream.on('error', error => process.stderr.write(`llm-double: ${file}: ${error.message}\n`))
  }

  return {
    /** Adds a request on arrival. */
    add(entry: Omit<RequestLog, 'n'>): RequestLog {
      arrivals += 1
      const added = { n: arrivals, ...entry }
      entries.push(added)
      if (entries.length > maxEntries + slack) entries = entries.slice(-maxEntries)
      return added
    },

    /** Writes a finished request to the file. */
    writeFinished(entry: RequestLog): void {
      if (stream?.writable) stream.write(`${lineOf(entry)}\n`)
    },

    /** Lists the newest 10 000 requests that match the filter, in arrival order. */
    list(filter: LogFilter): RequestLog[] {
      return entries
        .slice(-maxEntries)
        .filter(
          each =>
            (filter.lane === undefined || each.lane === filter.lane) &&
            (filter.kind === undefined || each.kind === filter.kind) &&
            (filter.after === undefined || each.n > filter.after),
        )
    },

    /** Deletes the requests of a lane. */
    drop(lane: string): void {
      entries = entries.filter(each => each.lane !== lane)
    },

    /** Deletes all requests and restarts the arrival numbers at 1. */
    reset(): void {
      entries = []
      arrivals = 0
    },

    /** Flushes and closes the file. */
    async close(): Promise<void> {
      if (!stream || stream.destroyed) return
      stream.end()
      await once(stream, 'close')
    },
  }
}

function lineOf(entry: RequestLog): string {
  try {
    return JSON.stringify(entry)
  } catch {
    // A body nested too deeply for the stack can be parsed but not serialized.
    return JSON.stringify({ ...entry, body: null })
  }
}
