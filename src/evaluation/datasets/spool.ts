import { createHash } from 'node:crypto'
import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Transform } from 'node:stream'
import { AppError, type Problem, raise, raiseInvalid } from '../../core/api/errors.ts'
import type { StreamedBody, StreamedRequest } from '../../core/api/operation.ts'
import { eventLoopYielder } from '../../core/process/event-loop.ts'
import { itemBytes } from './add.ts'
import { type ItemFormat, linesOf, MEDIA_TYPES, parseRows, UnreadableFile } from './item-files.ts'
import type { DatasetItemInput } from './model.ts'

/** Problems of a file that an answer lists. */
const MOST_PROBLEMS = 100

/** What is gathered before it is written. */
const HELD_CHARS = 64 * 1024

/**
 * Items of a file that came with a request: checked, and kept in a file of their own until they are written. That has no name
 * any more, so that it goes with the process.
 */
export class Spool {
  readonly #file: FileHandle
  readonly count: number
  readonly bytes: number
  readonly #sha256: string
  constructor(file: FileHandle, found: { count: number; bytes: number; sha256: string }) {
    this.#file = file
    this.count = found.count
    this.bytes = found.bytes
    this.#sha256 = found.sha256
  }

  /** The items, as they are read. */
  async *items(): AsyncGenerator<DatasetItemInput> {
    const source = this.#file.createReadStream({ start: 0, autoClose: false })
    for await (const line of linesOf(source, Number.POSITIVE_INFINITY)) yield JSON.parse(line)
  }

  toJSON() {
    return { count: this.count, bytes: this.bytes, sha256: this.#sha256 }
  }
}

const formatOf = (type: string | undefined): ItemFormat => {
  const essence = (type ?? '').split(';')[0].trim().toLowerCase()
  if (essence === MEDIA_TYPES.csv) return 'csv'
  if (['application/x-ndjson', 'application/jsonl', 'application/x-jsonlines'].includes(essence)) return 'jsonl'
  return raise('REQUEST_REJECTED', {
    status: 415,
    message: `The body must be ${MEDIA_TYPES.csv} or ${MEDIA_TYPES.jsonl}`,
  })
}

/**
 * Reads a file of items as it arrives: each row is checked and kept on disk, so that memory stays bounded and no transaction
 * waits for the sender. Lists what is wrong by line and field.
 * @throws VALIDATION_FAILED, REQUEST_REJECTED
 */
export async function receiveItems({ req, services, closed }: StreamedRequest): Promise<StreamedBody> {
  const format = formatOf(req.headers['content-type'])
  if ((req.headers['content-encoding'] ?? 'identity') !== 'identity')
    raise('REQUEST_REJECTED', { status: 415, message: 'A file of items is read as it is sent: do not encode the body' })
  const { DATASET_IMPORT_MAX_BYTES: maxBytes, DATASET_MAX_ITEMS: maxItems } = services.config
  const hash = createHash('sha256')
  let left = maxBytes
  const bounded = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      left -= chunk.length
      hash.update(chunk)
      done(left < 0 ? tooLarge(maxBytes) : null, chunk)
    },
  })
  const out = await openUnnamed()
  const discard = () => out.close()
  const leave = () =>
    bounded.destroy(new AppError('REQUEST_REJECTED', { message: 'The request ended before its body did' }))
  closed.addEventListener('abort', leave, { once: true })
  try {
    req.pipe(bounded)
    const problems: Problem[] = []
    const breathe = eventLoopYielder()
    let rows = 0
    let count = 0
    let bytes = 0
    let held = ''
    try {
      for await (const row of parseRows(bounded, format)) {
        await breathe()
        if ('problems' in row) problems.push(...row.problems)
        else {
          count++
          bytes += itemBytes(row.item)
          held += `${JSON.stringify(row.item)}\n`
          if (held.length >= HELD_CHARS) {
            await out.appendFile(held)
            held = ''
          }
        }
        if (++rows > maxItems)
          raiseInvalid({
            code: 'LIMIT_REACHED',
            path: `lines[${row.line}]`,
            message: `a file has at most ${maxItems} rows, as many as a dataset has items, blank ones included`,
          })
        if (problems.length >= MOST_PROBLEMS) break
      }
    } catch (error) {
      if (!(error instanceof UnreadableFile)) throw error
      problems.push(error.problem)
    }
    if (problems.length > 0) raiseInvalid(problems.slice(0, MOST_PROBLEMS))
    if (count === 0) raiseInvalid({ code: 'REQUIRED', path: '', message: 'the file has no items' })
    await out.appendFile(held)
    return { body: { file: new Spool(out, { count, bytes, sha256: hash.digest('hex') }) }, discard }
  } catch (error) {
    await discard()
    throw error
  } finally {
    closed.removeEventListener('abort', leave)
    req.unpipe(bounded)
    bounded.destroy()
    // What is not read would hold the connection.
    req.resume()
  }
}

/** An empty file that nobody else can find. */
async function openUnnamed(): Promise<FileHandle> {
  const directory = await mkdtemp(path.join(tmpdir(), 'muster-items-'))
  try {
    return await open(path.join(directory, 'items'), 'wx+')
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}

const tooLarge = (max_bytes: number): AppError =>
  new AppError('REQUEST_REJECTED', {
    status: 413,
    message: `The file is larger than ${max_bytes} bytes`,
    meta: { max_bytes },
  })
