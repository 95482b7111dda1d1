import { Readable } from 'node:stream'
import { encodeExtended } from 'content-disposition'
import rangeParser from 'range-parser'
import { raise } from '../../core/api/errors.ts'
import { etagMatches } from '../../core/api/etag.ts'
import { type Context, type OperationResult, result, streamResult } from '../../core/api/operation.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken, verifyToken } from '../../identity/tokens.ts'
import type { ByteRange } from '../storage/backend.ts'
import { raiseTooLarge } from '../storage/backends.ts'
import { type FileRow, fileKind } from './model.ts'
import { fileBytes, openFile, rowIfReplaced } from './read-file.ts'

const TYPE = 'application/octet-stream'

/** An address that anybody may download one file from, for FILE_DOWNLOAD_TOKEN_TTL_SECONDS. */
export async function downloadUrl(services: Services, fileId: string): Promise<string> {
  const { config } = services
  const { token } = await signToken(services, 'download', fileId, {}, config.FILE_DOWNLOAD_TOKEN_TTL_SECONDS)
  return `${config.BASE_URL}/api/v1/files/${fileId}/download?token=${token}`
}

/** Whether a token in the query is one for this file. */
export async function holdsDownloadToken(services: Services, fileId: string, token: unknown): Promise<boolean> {
  return typeof token === 'string' && (await verifyToken(services, ['download'], token))?.sub === fileId
}

/**
 * The one range that a request asks for; null for all bytes. A range that cannot be read, and several at once, are as if
 * none was asked for. Raises REQUEST_REJECTED 416 for one beyond the end.
 */
function rangeOf(header: string | undefined, size: number): ByteRange | null {
  if (header === undefined || header.includes(',')) return null
  // More last bytes than there are: all of them (RFC 9110, 14.1.2).
  const suffix = /^bytes=\s*-\s*(\d+)\s*$/.exec(header)
  const ranges = rangeParser(size, suffix ? `bytes=-${Math.min(Number(suffix[1]), size)}` : header)
  if (ranges === -2) return null
  if (ranges === -1)
    return raise('REQUEST_REJECTED', {
      status: 416,
      message: `The file has ${size} bytes`,
      headers: { 'Content-Range': `bytes */${size}` },
    })
  return ranges.type === 'bytes' ? ranges[0] : null
}

/** The header that names a download: quoted ASCII for old clients, and the name as it is (RFC 6266, RFC 8187). */
const attachment = (filename: string): string => {
  const ascii = filename.replaceAll(/[^\x20-\x7e]/g, '?').replaceAll(/["\\]/g, '\\$&')
  return `attachment; filename="${ascii}"; filename*=${encodeExtended(filename)}`
}

/** Answers the bytes of a file, some of them, or that the client has them. */
export async function sendFile({
  resource: file,
  services,
  request,
}: Pick<Context<unknown, unknown, FileRow>, 'resource' | 'services' | 'request'>): Promise<OperationResult> {
  const size = file.size ?? 0
  if (file.storage === null)
    return raise(fileKind.notFound, { message: 'The file has no content', meta: { id: file.id } })
  const tag = `"${file.sha256}"`
  const headers: Record<string, string> = {
    ETag: tag,
    'Accept-Ranges': 'bytes',
    'Cache-Control': 'private, no-store',
    'Content-Disposition': attachment(file.filename),
    'X-Content-Type-Options': 'nosniff',
  }
  const { 'if-none-match': known, 'if-range': unlessChanged, range: asked } = request.headers
  if (known !== undefined && etagMatches(known, tag)) return result(304, undefined, headers)
  const range = unlessChanged === undefined || unlessChanged === tag ? rangeOf(asked, size) : null
  const stream = await openFile(services, file, range ?? undefined)
  if (!stream) {
    const now = await rowIfReplaced(services, file)
    if (now) return sendFile({ resource: now, services, request })
    return raise(fileKind.notFound, { message: 'The content of the file is lost', meta: { id: file.id } })
  }
  const type = file.content_type ?? TYPE
  if (!range) return streamResult(type, stream, { ...headers, 'Content-Length': String(size) })
  return streamResult(
    type,
    stream,
    {
      ...headers,
      'Content-Length': String(range.end + 1 - range.start),
      'Content-Range': `bytes ${range.start}-${range.end}/${size}`,
    },
    206,
  )
}

/** Base64 of bytes that come in pieces. */
async function* base64Of(pieces: AsyncIterable<Buffer>): AsyncGenerator<string> {
  let rest = Buffer.alloc(0)
  for await (const piece of pieces) {
    const bytes = rest.length > 0 ? Buffer.concat([rest, piece]) : piece
    const whole = bytes.length - (bytes.length % 3)
    if (whole > 0) yield bytes.toString('base64', 0, whole)
    rest = Buffer.from(bytes.subarray(whole))
  }
  if (rest.length > 0) yield rest.toString('base64')
}

/** A file of up to so many bytes is read before it is answered; of a larger one no more is in memory at a time. */
const READ_AHEAD = 256 * 1024

/** The bytes of a file, piece by piece; null when there are none. */
async function* piecesOf(bytes: Buffer) {
  yield bytes
}

/**
 * Answers the bytes of a file in base64, with what they are, written as they are read. Raises REQUEST_REJECTED 413 above
 * FILES_INLINE_MAX_BYTES.
 */
export async function downloadBase64(services: Services, file: FileRow): Promise<OperationResult> {
  const { storage, size, filename, content_type } = file
  const maxBytes = services.config.FILES_INLINE_MAX_BYTES
  if (storage !== null && size !== null && size > maxBytes) throw raiseTooLarge(maxBytes)
  const small = size !== null && size <= READ_AHEAD
  const bytes = small ? await fileBytes(services, file, size) : null
  const pieces = small ? bytes && piecesOf(bytes) : await openFile(services, file)
  if (!pieces || size === null) {
    const now = await rowIfReplaced(services, file)
    if (now) return downloadBase64(services, now)
    return raise(fileKind.notFound, { message: 'The file has no content', meta: { id: file.id } })
  }
  const head = '{"content":"'
  const tail = `",${JSON.stringify({ filename, content_type, size }).slice(1)}`
  async function* body() {
    yield head
    yield* base64Of(pieces as AsyncIterable<Buffer>)
    yield tail
  }
  const length = head.length + 4 * Math.ceil(size / 3) + Buffer.byteLength(tail)
  return streamResult('application/json; charset=utf-8', Readable.from(body(), { objectMode: false }), {
    'Content-Length': String(length),
  })
}
