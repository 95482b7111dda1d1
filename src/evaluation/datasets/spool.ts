import { createHash } from 'node:crypto'
import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Transform } from 'node:stream'
import type { StreamedBody, StreamedRequest } from '#core/api/operation.ts'
import { AppError, type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { itemBytes } from './add.ts'
import { type ItemFormat, MEDIA_TYPES, parseRows, readLines, UnreadableFile } from './item-files.ts'
import type { DatasetItemInput } from './model.ts'

/** Most problems of a file in a response. */
const MAX_PROBLEMS = 100

/** Characters buffered before a write to the file. */
const BUFFER_CHARS = 64 * 1024

/**
 * Validated items of an uploaded file, in a temporary file until they are written. The file is unlinked, so it
 * disappears with the process.
 */
export class ItemSpool {
  readonly #file: FileHandle
  readonly count: number
  readonly bytes: number
  readonly #sha256: string
  constructor(file: FileHandle, totals: { count: number; bytes: number; sha256: string }) {
    this.#file = file
    this.count = totals.count
    this.bytes = totals.bytes
    this.#sha256 = totals.sha256
  }

  /** Reads the items. */
  async *items(): AsyncGenerator<DatasetItemInput> {
    const source = this.#file.createReadStream({ start: 0, autoClose: false })
    for await (const line of readLines(source, Number.POSITIVE_INFINITY)) yield parseExactJson(line)
  }

  toJSON() {
    return { count: this.count, bytes: this.bytes, sha256: this.#sha256 }
  }
}

const itemFormat = (type: string | undefined): ItemFormat => {
  const essence = (type ?? '').split(';')[0].trim().toLowerCase()
  if (essence === MEDIA_TYPES.csv) return 'csv'
  if (['application/x-ndjson', 'application/jsonl', 'application/x-jsonlines'].includes(essence)) return 'jsonl'
  return raise('REQUEST_REJECTED', {
    status: 415,
    message: `Request body is not ${MEDIA_TYPES.csv} or ${MEDIA_TYPES.jsonl}`,
  })
}

/**
 * Receives a file of items: each row is validated and stored on disk as it arrives, so that memory stays bounded and no
 * transaction waits for the client. Reports problems by line and field.
 * @throws VALIDATION_FAILED, REQUEST_REJECTED
 */
export async function receiveItems({ req, services, closed }: StreamedRequest): Promise<StreamedBody> {
  const format = itemFormat(req.headers['content-type'])
  if ((req.headers['content-encoding'] ?? 'identity') !== 'identity')
    raise('REQUEST_REJECTED', { status: 415, message: 'Content-Encoding is not supported for item files' })
  const { DATASET_IMPORT_MAX_BYTES: maxBytes, DATASET_MAX_ITEMS: maxItems } = services.config
  const hash = createHash('sha256')
  let remaining = maxBytes
  const limited = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      remaining -= chunk.length
      hash.update(chunk)
      done(remaining < 0 ? tooLarge(maxBytes) : null, chunk)
    },
  })
  const file = await openUnlinkedFile()
  const discard = () => file.close()
  const abort = () =>
    limited.destroy(new AppError('REQUEST_REJECTED', { message: 'Request ended before its body was complete' }))
  closed.addEventListener('abort', abort, { once: true })
  try {
    req.pipe(limited)
    const problems: Problem[] = []
    const yieldToEventLoop = eventLoopYielder()
    let rows = 0
    let count = 0
    let bytes = 0
    let buffer = ''
    try {
      for await (const row of parseRows(limited, format)) {
        await yieldToEventLoop()
        if ('problems' in row) problems.push(...row.problems)
        else {
          count++
          bytes += itemBytes(row.item)
          buffer += `${JSON.stringify(row.item)}\n`
          if (buffer.length >= BUFFER_CHARS) {
            await file.appendFile(buffer)
            buffer = ''
          }
        }
        if (++rows > maxItems)
          raiseInvalid({
            code: 'LIMIT_REACHED',
            path: `lines[${row.line}]`,
            message: `exceeds the limit of ${maxItems} rows, including blank rows`,
          })
        if (problems.length >= MAX_PROBLEMS) break
      }
    } catch (error) {
      if (!(error instanceof UnreadableFile)) throw error
      problems.push(error.problem)
    }
    if (problems.length > 0) raiseInvalid(problems.slice(0, MAX_PROBLEMS))
    if (count === 0) raiseInvalid({ code: 'REQUIRED', path: '', message: 'File contains no items' })
    await file.appendFile(buffer)
    return { body: { file: new ItemSpool(file, { count, bytes, sha256: hash.digest('hex') }) }, discard }
  } catch (error) {
    await discard()
    throw error
  } finally {
    closed.removeEventListener('abort', abort)
    req.unpipe(limited)
    limited.destroy()
    // Unread data would block the connection.
    req.resume()
  }
}

/** Opens an empty, unlinked temporary file. */
async function openUnlinkedFile(): Promise<FileHandle> {
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
    message: `File is larger than ${max_bytes} bytes`,
    meta: { max_bytes },
  })
