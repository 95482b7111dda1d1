import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import zlib from 'node:zlib'

/** A JSON text of a gigabyte, which no reader may hold: this head, then `BLOCKS` blocks. */
const HEAD = Buffer.from('{"data":[')
const BLOCK = Buffer.from('{},'.repeat(256 * 1024))
const BLOCKS = 1400

const repeated = (block: Buffer): Buffer[] => Array.from({ length: BLOCKS }, () => block)

const gzip = () => Buffer.concat([zlib.gzipSync(HEAD), ...repeated(zlib.gzipSync(BLOCK))])

/** The text by the content coding that names it. Members, frames and flushed blocks repeat, so that making it is quick. */
const codings: Record<string, () => Buffer> = {
  gzip,
  deflate: () => {
    const piece = (data: Buffer) => zlib.deflateRawSync(data, { finishFlush: zlib.constants.Z_FULL_FLUSH })
    return Buffer.concat([zlib.deflateSync('').subarray(0, 2), piece(HEAD), ...repeated(piece(BLOCK))])
  },
  br: () =>
    zlib.brotliCompressSync(Buffer.concat([HEAD, ...repeated(BLOCK)]), {
      params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 1 },
    }),
  zstd: () => Buffer.concat([zlib.zstdCompressSync(HEAD), ...repeated(zlib.zstdCompressSync(BLOCK))]),
  'gzip, gzip': () => zlib.gzipSync(gzip()),
  'gzip, br': () => zlib.brotliCompressSync(gzip(), { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 1 } }),
}

export const CODINGS = Object.keys(codings)

/** How the length of the body is declared: correct, not at all, a byte short, a byte long. */
export const FRAMINGS = ['exact', 'chunked', 'short', 'long'] as const

const made = new Map<string, Buffer>()

/** The compressed body of a coding. */
export function bomb(coding: string): Buffer {
  let body = made.get(coding)
  if (!body) {
    body = codings[coding]()
    made.set(coding, body)
  }
  return body
}

/** Answers everything below `/<coding>/<framing>` with a small body that unpacks to a gigabyte. */
export async function startBombs(): Promise<{ url: string; asked: string[]; close(): Promise<void> }> {
  const asked: string[] = []
  const server = createServer((request, response) => {
    request.resume()
    response.on('error', () => {})
    const [, coding, framing] = decodeURIComponent(request.url as string).split('/')
    asked.push(String(request.headers['accept-encoding']))
    const body = bomb(coding)
    const declared = { exact: body.length, short: body.length - 1, long: body.length + 1 }[framing]
    response.strictContentLength = false
    response.writeHead(200, {
      'content-type': 'application/json',
      'content-encoding': coding,
      ...(declared !== undefined && { 'content-length': declared }),
    })
    response.end(body)
    if (framing === 'long') response.socket?.end()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
