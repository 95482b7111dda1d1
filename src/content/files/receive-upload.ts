import type { IncomingMessage } from 'node:http'
import { PassThrough, Readable, type Transform } from 'node:stream'
import { finished } from 'node:stream/promises'
import { createBrotliDecompress, createGunzip, createInflate } from 'node:zlib'
import type { Request, Response } from 'express'
import multer from 'multer'
import { AppError, raise, raiseInvalid } from '../../core/api/errors.ts'
import type { StreamedBody, StreamedRequest } from '../../core/api/operation.ts'
import { parseJson } from '../../core/http/body.ts'
import { raiseTooLarge, type StagedUpload, storageBackends } from '../storage/backends.ts'
import { decodeBase64, JsonBody } from './json-body.ts'
import { essenceOf } from './media-type.ts'
import { Upload } from './upload.ts'

/** Where the bytes of a request go. */
export type UploadTarget = {
  fileId: string
  /** What the bytes are stored under; default the file's id. */
  objectId?: string
  /** Null while only the fields of a form name the project. */
  projectId: string | null
  maxBytes: number
}

/** What the fields of a form and the heads of its parts may take beside the file. */
const FORM_BYTES = 1024 * 1024
const FIELD_BYTES = 256 * 1024
const JSON_FIELD_BYTES = 1024 * 1024

/** Directory of bytes whose project was not known when they came. */
const UNASSIGNED = 'unassigned'

const PROJECT = /^proj_[0-9a-z]{26}$/

/** The declared length of a body; null when it is not declared. */
function declaredLength(req: IncomingMessage): number | null {
  const length = req.headers['content-length']
  return length === undefined ? null : Number(length)
}

export const isForm = (req: IncomingMessage): boolean =>
  /^multipart\/form-data\s*(;|$)/i.test(req.headers['content-type'] ?? '')

/** Bytes are stored as they are sent. */
function refuseEncoded({ headers }: IncomingMessage): void {
  if ((headers['content-encoding'] ?? 'identity') !== 'identity')
    raise('REQUEST_REJECTED', { status: 415, message: 'A file is stored as it is sent: do not encode the body' })
}

/** Stages what requests bring and remembers it until it is taken over or dropped. */
class Intake {
  private readonly request: StreamedRequest
  private readonly destination: UploadTarget
  private readonly staged: StagedUpload[] = []
  private pending: Promise<unknown> = Promise.resolve()
  /** A failure of ours, in contrast to one of the sender. */
  failure: unknown = null

  constructor(request: StreamedRequest, destination: UploadTarget) {
    this.request = request
    this.destination = destination
  }

  take(
    source: Readable,
    named: { filename: string | null; type: string | null },
    projectId = this.destination.projectId,
  ) {
    const { fileId, objectId, maxBytes } = this.destination
    const work = storageBackends(this.request.services)
      .stage(source, { projectId: projectId ?? UNASSIGNED, fileId: objectId ?? fileId, maxBytes })
      .then(
        staged => {
          this.staged.push(staged)
          return new Upload(staged, fileId, named)
        },
        error => {
          const sendersFault = error === source.errored || error?.code === 'ERR_STREAM_PREMATURE_CLOSE'
          if (!sendersFault) this.failure = error
          throw error
        },
      )
    this.pending = work.catch(() => {})
    return work
  }

  readonly discard = async (): Promise<void> => {
    await this.pending
    await Promise.all(this.staged.map(staged => staged.discard()))
  }

  /** Reads a body; drops what it brought when it is refused. */
  async reading<T>(work: () => Promise<T>): Promise<T> {
    try {
      // A connection that is closed by now would never end the body.
      if (this.request.closed.aborted || this.request.req.destroyed) throw unfinished()
      return await work()
    } catch (error) {
      await this.discard()
      throw this.refusal(error)
    }
  }

  private refusal(error: unknown): unknown {
    if (error instanceof AppError) return error
    if (error instanceof multer.MulterError) return formRefusal(error)
    if (this.failure) return this.failure
    const { req, closed } = this.request
    if (!req.complete && (req.destroyed || closed.aborted)) return unfinished()
    return malformed((error as Error).message)
  }
}

const unfinished = (): AppError =>
  new AppError('REQUEST_REJECTED', { status: 400, message: 'The request ended before its body did' })

const malformed = (message: string): AppError =>
  new AppError('VALIDATION_FAILED', {
    message: `Malformed request body: ${message}`,
    meta: { problems: [{ code: 'MALFORMED', path: '', message }] },
  })

const refusedPart = (code: string, path: string, message: string): AppError =>
  new AppError('VALIDATION_FAILED', {
    message: path ? `${path}: ${message}` : message,
    meta: { problems: [{ code, path, message }] },
  })

function formRefusal({ code, field, message }: multer.MulterError): AppError {
  if (code === 'LIMIT_FILE_COUNT' || (code === 'LIMIT_UNEXPECTED_FILE' && field === 'file'))
    return refusedPart('INVALID_VALUE', 'file', 'must be exactly one file')
  if (code === 'LIMIT_UNEXPECTED_FILE' || (code as string) === 'LIMIT_FIELD_NESTING')
    return refusedPart('UNKNOWN_PROPERTY', field ?? '', 'is not a known property')
  return refusedPart('INVALID_VALUE', field ?? '', message)
}

/** The value of a field that travels as JSON text. */
function jsonField(fields: Record<string, unknown>, name: string): void {
  const text = fields[name]
  if (typeof text !== 'string') return
  try {
    fields[name] = parseJson(text)
  } catch (error) {
    if (error instanceof AppError) throw error
    raiseInvalid({ code: 'MALFORMED', path: name, message: 'must be JSON text' })
  }
}

/** Reads a form with one part `file`, whose bytes go straight to the store, and text fields before or after it. */
export async function receiveForm(request: StreamedRequest, destination: UploadTarget): Promise<StreamedBody> {
  const { req } = request
  if (!isForm(req)) throw malformed('must be multipart/form-data')
  refuseEncoded(req)
  if ((declaredLength(req) ?? 0) > destination.maxBytes + FORM_BYTES) throw raiseTooLarge(destination.maxBytes)
  const intake = new Intake(request, destination)
  const engine: multer.StorageEngine = {
    _handleFile(carrier, file, done) {
      const named = (carrier.body as Record<string, unknown>).project_id
      const projectId = typeof named === 'string' && PROJECT.test(named) ? named : undefined
      intake
        .take(file.stream, { filename: file.originalname, type: file.mimetype }, destination.projectId ?? projectId)
        .then(
          upload => done(null, { upload } as never),
          error => done(error),
        )
    },
    _removeFile(_carrier, file, done) {
      ;(file as unknown as { upload: Upload }).upload.staged.discard().then(() => done(null), done)
    },
  }
  const read = multer({
    storage: engine,
    // Names of parts are UTF-8 in every browser, whatever their header says.
    defParamCharset: 'utf8',
    limits: {
      files: 1,
      fields: 20,
      fieldNameSize: 100,
      fieldSize: FIELD_BYTES,
      headerPairs: 100,
      fieldNestingDepth: 0,
    } as multer.Options['limits'],
  } as multer.Options).single('file')
  return intake.reading(async () => {
    await new Promise<void>((resolve, reject) =>
      read(req as Request, {} as Response, (error: unknown) => (error ? reject(error) : resolve())),
    )
    const { body, file } = req as Request
    const fields: Record<string, unknown> = { ...body }
    if ('file' in fields) raiseInvalid({ code: 'INVALID_TYPE', path: 'file', message: 'must be a file' })
    for (const name of ['metadata', 'tags']) jsonField(fields, name)
    if (file) fields.file = (file as unknown as { upload: Upload }).upload
    return { body: fields, discard: intake.discard }
  })
}

/**
 * Reads a body through a stream of its own: reading the request itself would close its connection when the body is
 * refused, and the answer would be lost.
 */
async function readThrough<T>(req: IncomingMessage, source: Transform, read: () => Promise<T>): Promise<T> {
  req.once('close', () => {
    if (!req.complete) source.destroy(new Error('the request was closed'))
  })
  req.pipe(source)
  try {
    return await read()
  } catch (error) {
    // Who sends everything before he reads would never get to the answer.
    req.unpipe(source)
    await finished(req.resume()).catch(() => {})
    throw error
  }
}

/** What undoes the encoding of a JSON body. Raises REQUEST_REJECTED 415. */
function decoderOf({ headers }: IncomingMessage): Transform {
  switch ((headers['content-encoding'] ?? 'identity').toLowerCase()) {
    case 'identity':
      return new PassThrough()
    case 'gzip':
      return createGunzip()
    case 'deflate':
      return createInflate()
    case 'br':
      return createBrotliDecompress()
    default:
      return raise('REQUEST_REJECTED', { status: 415, message: 'The body is in an encoding that is not known' })
  }
}

/** Reads a JSON body whose `content` is the file in base64, which goes to the store as it arrives. */
export async function receiveJson(request: StreamedRequest, destination: UploadTarget): Promise<StreamedBody> {
  const { req } = request
  // Base64 with line breaks, and the other fields.
  const limit = Math.ceil(destination.maxBytes * 1.4) + JSON_FIELD_BYTES
  const source = decoderOf(req)
  const intake = new Intake(request, destination)
  return intake.reading(() =>
    readThrough(req, source, async () => {
      if ((declaredLength(req) ?? 0) > limit) throw raiseTooLarge(destination.maxBytes)
      const json = new JsonBody(source, { name: 'content', maxBytes: limit, maxRestBytes: JSON_FIELD_BYTES })
      const once = (): never => raiseInvalid({ code: 'INVALID_VALUE', path: 'content', message: 'must be given once' })
      let content: Upload | null = null
      while (await json.find()) {
        if (content) once()
        const bytes = Readable.from(decodeBase64(json.text()), { objectMode: false })
        content = await intake.take(bytes, { filename: null, type: null })
      }
      const body = json.value() ?? {}
      if (typeof body !== 'object' || Array.isArray(body)) throw malformed('must be a JSON object')
      const fields: Record<string, unknown> = { ...body }
      if (content && fields.content !== '') once()
      if (content) fields.content = content
      return { body: fields, discard: intake.discard }
    }),
  )
}

/** Reads a body that is the file itself. */
export async function receiveBytes(request: StreamedRequest, destination: UploadTarget): Promise<StreamedBody> {
  const { req } = request
  if ((declaredLength(req) ?? 0) > destination.maxBytes) throw raiseTooLarge(destination.maxBytes)
  refuseEncoded(req)
  const intake = new Intake(request, destination)
  const source = new PassThrough()
  return intake.reading(() =>
    readThrough(req, source, async () => {
      const type = req.headers['content-type'] ?? null
      // The default of clients that were given no type says nothing about the file.
      const meant = type !== null && essenceOf(type) !== 'application/x-www-form-urlencoded'
      const file = await intake.take(source, { filename: null, type: meant ? type : null })
      return { body: { file }, discard: intake.discard }
    }),
  )
}
