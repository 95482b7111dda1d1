import type { IncomingMessage } from 'node:http'
import { PassThrough, Readable, type Transform } from 'node:stream'
import { finished } from 'node:stream/promises'
import { createBrotliDecompress, createGunzip, createInflate } from 'node:zlib'
import type { Request, Response } from 'express'
import multer from 'multer'
import { isIdOf, kinds } from '#core/api/kind.ts'
import type { StreamedBody, StreamedRequest } from '#core/api/operation.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { parseJson } from '#core/base/json-limits.ts'
import { raiseTooLarge, type StagedUpload, storageBackends } from '../storage/backends.ts'
import { decodeBase64, JsonBody } from './json-body.ts'
import { essenceOf } from './media-type.ts'
import { Upload } from './upload.ts'

/** Destination and limit of uploaded bytes. */
export type UploadTarget = {
  fileId: string
  /** Object name in the storage backend; default `fileId`. */
  objectId?: string
  /** Null if only a form field identifies the project. */
  projectId: string | null
  maxBytes: number
}

/** Limit for form fields and part headers, in addition to the file. */
const FORM_BYTES = 1024 * 1024
const FIELD_BYTES = 256 * 1024
const JSON_FIELD_BYTES = 1024 * 1024

/** Directory of uploads whose project is unknown when the bytes arrive. */
const UNASSIGNED = 'unassigned'

/** Returns the declared length of a body, or null without a declaration. */
export function declaredLength(req: IncomingMessage): number | null {
  const length = req.headers['content-length']
  return length === undefined ? null : Number(length)
}

export const isForm = (req: IncomingMessage): boolean =>
  /^multipart\/form-data\s*(;|$)/i.test(req.headers['content-type'] ?? '')

function refuseEncoded({ headers }: IncomingMessage): void {
  if ((headers['content-encoding'] ?? 'identity') !== 'identity')
    raise('REQUEST_REJECTED', { status: 415, message: 'Content-Encoding is not supported for file bodies' })
}

/** Stages the uploads of one request and discards them if the request is refused. */
class UploadStaging {
  private readonly request: StreamedRequest
  private readonly destination: UploadTarget
  private readonly staged: StagedUpload[] = []
  private pending: Promise<unknown> = Promise.resolve()
  /** Server-side failure, as opposed to an error of the client. */
  failure: unknown = null

  constructor(request: StreamedRequest, destination: UploadTarget) {
    this.request = request
    this.destination = destination
  }

  stage(
    source: Readable,
    part: { filename: string | null; type: string | null },
    projectId = this.destination.projectId,
  ) {
    const { fileId, objectId, maxBytes } = this.destination
    const upload = storageBackends(this.request.services)
      .stage(source, { projectId: projectId ?? UNASSIGNED, fileId: objectId ?? fileId, maxBytes })
      .then(
        staged => {
          this.staged.push(staged)
          return new Upload(staged, fileId, part)
        },
        error => {
          const isClientError = error === source.errored || error?.code === 'ERR_STREAM_PREMATURE_CLOSE'
          if (!isClientError) this.failure = error
          throw error
        },
      )
    this.pending = upload.catch(() => {})
    return upload
  }

  readonly discard = async (): Promise<void> => {
    await this.pending
    await Promise.all(this.staged.map(staged => staged.discard()))
  }

  /** Runs `read`; if it throws, discards the staged uploads and throws the error for the client. */
  async discardOnError<T>(read: () => Promise<T>): Promise<T> {
    try {
      // The body of a closed connection would never end.
      if (this.request.closed.aborted || this.request.req.destroyed) throw unfinished()
      return await read()
    } catch (error) {
      await this.discard()
      throw this.toClientError(error)
    }
  }

  private toClientError(error: unknown): unknown {
    if (error instanceof AppError) return error
    if (error instanceof multer.MulterError) return formRefusal(error)
    if (this.failure) return this.failure
    const { req, closed } = this.request
    if (!req.complete && (req.destroyed || closed.aborted)) return unfinished()
    return malformed((error as Error).message)
  }
}

const unfinished = (): AppError =>
  new AppError('REQUEST_REJECTED', { status: 400, message: 'The request body is incomplete' })

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

/** Parses a form field that carries JSON text, in place. */
function parseJsonField(fields: Record<string, unknown>, name: string): void {
  const text = fields[name]
  if (typeof text !== 'string') return
  try {
    fields[name] = parseJson(text)
  } catch (error) {
    if (error instanceof AppError) throw error
    raiseInvalid({ code: 'MALFORMED', path: name, message: 'must be JSON text' })
  }
}

/** Reads a form with text fields and one part `file`, whose bytes are streamed to the storage backend. */
export async function receiveForm(request: StreamedRequest, destination: UploadTarget): Promise<StreamedBody> {
  const { req } = request
  if (!isForm(req)) throw malformed('must be multipart/form-data')
  refuseEncoded(req)
  if ((declaredLength(req) ?? 0) > destination.maxBytes + FORM_BYTES) throw raiseTooLarge(destination.maxBytes)
  const staging = new UploadStaging(request, destination)
  const engine: multer.StorageEngine = {
    _handleFile(carrier, file, done) {
      const field = (carrier.body as Record<string, unknown>).project_id
      const projectId = typeof field === 'string' && isIdOf(kinds.get('project'), field) ? field : undefined
      staging
        .stage(file.stream, { filename: file.originalname, type: file.mimetype }, destination.projectId ?? projectId)
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
    // Browsers send part names in UTF-8 without declaring it.
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
  return staging.discardOnError(async () => {
    await new Promise<void>((resolve, reject) =>
      read(req as Request, {} as Response, (error: unknown) => (error ? reject(error) : resolve())),
    )
    const { body, file } = req as Request
    const fields: Record<string, unknown> = { ...body }
    if ('file' in fields) raiseInvalid({ code: 'INVALID_TYPE', path: 'file', message: 'must be a file' })
    for (const name of ['metadata', 'tags']) parseJsonField(fields, name)
    if (file) fields.file = (file as unknown as { upload: Upload }).upload
    return { body: fields, discard: staging.discard }
  })
}

/**
 * Pipes a request body into `source` and runs `read`. Reading the request directly would close its connection when the
 * body is refused, and the response would be lost.
 */
async function readThrough<T>(req: IncomingMessage, source: Transform, read: () => Promise<T>): Promise<T> {
  req.once('close', () => {
    if (!req.complete) source.destroy(new Error('the request was closed'))
  })
  req.pipe(source)
  try {
    return await read()
  } catch (error) {
    // Drain the body: a client that sends everything before it reads would never reach the response.
    req.unpipe(source)
    await finished(req.resume()).catch(() => {})
    throw error
  }
}

/** Returns the decoder for the content encoding of a body. Raises REQUEST_REJECTED 415. */
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
      return raise('REQUEST_REJECTED', { status: 415, message: 'The Content-Encoding of the body is not supported' })
  }
}

/** Reads a JSON body and streams its base64 `content` to the storage backend. */
export async function receiveJson(request: StreamedRequest, destination: UploadTarget): Promise<StreamedBody> {
  const { req } = request
  // Base64 with line breaks, plus the other fields.
  const limit = Math.ceil(destination.maxBytes * 1.4) + JSON_FIELD_BYTES
  const source = decoderOf(req)
  const staging = new UploadStaging(request, destination)
  return staging.discardOnError(() =>
    readThrough(req, source, async () => {
      if ((declaredLength(req) ?? 0) > limit) throw raiseTooLarge(destination.maxBytes)
      const json = new JsonBody(source, { name: 'content', maxBytes: limit, maxRestBytes: JSON_FIELD_BYTES })
      const refuseDuplicate = (): never =>
        raiseInvalid({ code: 'INVALID_VALUE', path: 'content', message: 'must occur only once' })
      let content: Upload | null = null
      while (await json.find()) {
        if (content) refuseDuplicate()
        const bytes = Readable.from(decodeBase64(json.text()), { objectMode: false })
        content = await staging.stage(bytes, { filename: null, type: null })
      }
      const body = json.value() ?? {}
      if (!isObject(body)) throw malformed('must be a JSON object')
      const fields: Record<string, unknown> = { ...body }
      if (content && fields.content !== '') refuseDuplicate()
      if (content) fields.content = content
      return { body: fields, discard: staging.discard }
    }),
  )
}

/** Reads a body that consists of the file. */
export async function receiveBytes(request: StreamedRequest, destination: UploadTarget): Promise<StreamedBody> {
  const { req } = request
  if ((declaredLength(req) ?? 0) > destination.maxBytes) throw raiseTooLarge(destination.maxBytes)
  refuseEncoded(req)
  const staging = new UploadStaging(request, destination)
  const source = new PassThrough()
  return staging.discardOnError(() =>
    readThrough(req, source, async () => {
      const type = req.headers['content-type'] ?? null
      // Some clients send this type by default; it does not describe the file.
      const isExplicit = type !== null && essenceOf(type) !== 'application/x-www-form-urlencoded'
      const file = await staging.stage(source, { filename: null, type: isExplicit ? type : null })
      return { body: { file }, discard: staging.discard }
    }),
  )
}
