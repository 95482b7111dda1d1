import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import type { RequestBody, RequestKind } from './request.ts'

/** One model request as tests see it. `status` is null until an answer was begun. */
export type RequestLog = {
  /** Arrival number in the server, from 1. */
  n: number
  lane: string
  kind: RequestKind
  call: number
  rule_id: string | null
  reply_index: number | null
  status: number | null
  streamed: boolean
  /** Whether the client left before it had the whole answer. */
  aborted: boolean
  headers: IncomingHttpHeaders
  body: RequestBody
}

/** Which requests to list; `after` is an arrival number. */
export type LogFilter = { lane?: string | undefined; kind?: string | undefined; after?: number | undefined }

/** The request log of one server. */
export type Log = Awaited<ReturnType<typeof openLog>>

const kept = 10_000
/** Old entries are cut off in blocks, so that adding stays cheap. */
const slack = 1_000

/** Makes an empty log. With a file, each finished request is also appended to it as a line of JSON. */
export async function openLog(file?: string) {
  let entries: RequestLog[] = []
  let arrivals = 0
  const stream = file === undefined ? undefined : createWriteStream(file, { flags: 'a' })
  if (stream) {
    await once(stream, 'open')
    stream.on('error', error => process.stderr.write(`llm-double: ${file}: ${error.message}\n`))
  }

  return {
    /** Enters a request that has just arrived. */
    add(entry: Omit<RequestLog, 'n'>): RequestLog {
      arrivals += 1
      const added = { n: arrivals, ...entry }
      entries.push(added)
      if (entries.length > kept + slack) entries = entries.slice(-kept)
      return added
    },

    /** Notes that a request is over. */
    finished(entry: RequestLog): void {
      if (stream?.writable) stream.write(`${lineOf(entry)}\n`)
    },

    /** The newest 10 000 requests that pass the filter, in arrival order. */
    list(filter: LogFilter): RequestLog[] {
      return entries
        .slice(-kept)
        .filter(
          each =>
            (filter.lane === undefined || each.lane === filter.lane) &&
            (filter.kind === undefined || each.kind === filter.kind) &&
            (filter.after === undefined || each.n > filter.after),
        )
    },

    /** Forgets the requests of a lane. */
    drop(lane: string): void {
      entries = entries.filter(each => each.lane !== lane)
    },

    /** Forgets all requests and counts from 1 again. */
    reset(): void {
      entries = []
      arrivals = 0
    },

    /** Writes out what is left for the file. */
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
    // A body nested deeper than the stack allows can be parsed but not written.
    return JSON.stringify({ ...entry, body: null })
  }
}
