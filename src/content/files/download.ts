import { Readable } from 'node:stream'
import { encodeExtended } from 'content-disposition'
import rangeParser from 'range-parser'
import { etagMatches } from '#core/api/etag.ts'
import { type Context, type OperationResult, result, streamResult } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { signToken, verifyToken } from '#identity/tokens/tokens.ts'
import type { ByteRange } from '../storage/backend.ts'
import { raiseTooLarge } from '../storage/backends.ts'
import { type FileRow, fileKind } from './model.ts'
import { fileBytes, openFile, rowIfReplaced } from './read-file.ts'

const TYPE = 'application/octet-stream'

/** Returns a URL that downloads a file without a credential for FILE_DOWNLOAD_TOKEN_TTL_SECONDS. */
export async function downloadUrl(services: Services, fileId: string): Promise<string> {
  const { config } = services
  const { token } = await signToken(services, 'download', fileId, {}, config.FILE_DOWNLOAD_TOKEN_TTL_SECONDS)
  return `${config.BASE_URL}/api/v1/files/${fileId}/download?token=${token}`
}

/** Whether `token` is a valid download token for the file. */
export async function hasDownloadToken(services: Services, fileId: string, token: unknown): Promise<boolean> {
  return typeof token === 'string' && (await verifyToken(services, ['download'], token))?.sub === fileId
}

/**
 * Returns the requested range, or null for the whole file. A malformed range and multiple ranges are ignored. Raises
 * REQUEST_REJECTED 416 for a range beyond the end.
 */
function rangeOf(header: string | undefined, size: number): ByteRange | null {
  if (header === undefined || header.includes(',')) return null
  // A suffix longer than the file selects the whole file (RFC 9110, 14.1.2).
  const suffix = /^bytes=\s*-\s*(\d+)\s*$/.exec(header)
  const ranges = rangeParser(size, suffix ? `bytes=-${Math.min(Number(suffix[1]), size)}` : header)
  if (ranges === -2) return null
  if (ranges === -1)
    return raise('REQUEST_REJECTED', {
      status: 416,
      message: `The range is outside the file, which has ${size} bytes`,
      headers: { 'Content-Range': `bytes */${size}` },
    })
  return ranges.type === 'bytes' ? ranges[0] : null
}

/** Returns the Content-Disposition header: quoted ASCII for old clients, and the full name (RFC 6266, RFC 8187). */
const attachment = (filename: string): string => {
  const ascii = filename.replaceAll(/[^\x20-\x7e]/g, '?').replaceAll(/["\\]/g, '\\$&')
  return `attachment; filename="${ascii}"; filename*=${encodeExtended(filename)}`
}

/** Responds with the content of a file, a range of it, or 304 if the client has it cached. */
export async function sendFile({
  resource: file,
  services,
  request,
}: Pick<Context<unknown, unknown, FileRow>, 'resource' | 'services' | 'request'>): Promise<OperationResult> {
  const size = file.size ?? 0
  if (file.storage === null)
    return raise(fileKind.notFound, { message: 'The file has no content', meta: { id: file.id } })
  const etag = `"${file.sha256}"`
  const headers: Record<string, string> = {
    ETag: etag,
    'Accept-Ranges': 'bytes',
    'Cache-Control': 'private, no-store',
    'Content-Disposition': attachment(file.filename),
  }
  const { 'if-none-match': ifNoneMatch, 'if-range': ifRange, range: rangeHeader } = request.headers
  if (ifNoneMatch !== undefined && etagMatches(ifNoneMatch, etag)) return result(304, undefined, headers)
  const range = ifRange === undefined || ifRange === etag ? rangeOf(rangeHeader, size) : null
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

/** Encodes bytes that arrive in pieces as base64. */
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

/** Files up to this size are read before the response starts; larger ones are streamed. */
const READ_AHEAD = 256 * 1024

async function* piecesOf(bytes: Buffer) {
  yield bytes
}

/** Responds with the content of a file as base64 in JSON. Raises REQUEST_REJECTED 413 above FILES_INLINE_MAX_BYTES. */
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
