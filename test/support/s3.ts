import { createHash, createHmac, randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

type Upload = { key: string; parts: Map<number, Buffer> }

/** What the store answers instead of doing the request. */
export type Refusal = { status: number; code: string }

export type S3 = {
  url: string
  bucket: string
  accessKeyId: string
  secretAccessKey: string
  objects: Map<string, Buffer>
  /** Multipart uploads that are neither completed nor aborted. */
  uploads: Map<string, Upload>
  /** `PUT /key?partNumber`, in their order. */
  requests: string[]
  /** Decides of a request, by its name above, whether it is refused. */
  refuse: (request: string) => Refusal | null
  close(): Promise<void>
}

const sha256 = (data: Buffer | string) => createHash('sha256').update(data).digest('hex')
const hmac = (key: Buffer | string, data: string) => createHmac('sha256', key).update(data).digest()
const etag = (bytes: Buffer) => `"${createHash('md5').update(bytes).digest('hex')}"`

const encoded = (text: string) =>
  encodeURIComponent(text).replaceAll(/[!'()*]/g, char => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)

/** The problem of the signature of a request (AWS Signature Version 4); null when it is valid. */
function signatureProblem(req: IncomingMessage, url: URL, body: Buffer, accessKeyId: string, secret: string) {
  const match =
    /^AWS4-HMAC-SHA256 Credential=([^/]+)\/(\d{8})\/([^/]+)\/s3\/aws4_request, SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$/.exec(
      req.headers.authorization ?? '',
    )
  if (!match) return 'AccessDenied'
  const [, id, day, region, signed, signature] = match
  if (id !== accessKeyId) return 'InvalidAccessKeyId'
  const payload = req.headers['x-amz-content-sha256']
  if (payload !== 'UNSIGNED-PAYLOAD' && payload !== sha256(body)) return 'XAmzContentSHA256Mismatch'
  const names = signed.split(';')
  if (!names.includes('host') || !names.includes('x-amz-date')) return 'AccessDenied'
  const time = req.headers['x-amz-date'] as string
  const query = [...url.searchParams]
    .map(([name, value]) => `${encoded(name)}=${encoded(value)}`)
    .sort()
    .join('&')
  const canonical = [
    req.method,
    url.pathname,
    query,
    ...names.map(name => `${name}:${String(req.headers[name]).trim().replaceAll(/ +/g, ' ')}`),
    '',
    signed,
    payload,
  ].join('\n')
  const scope = `${day}/${region}/s3/aws4_request`
  const text = ['AWS4-HMAC-SHA256', time, scope, sha256(canonical)].join('\n')
  const key = [region, 's3', 'aws4_request'].reduce<Buffer>(
    (from, part) => hmac(from, part),
    hmac(`AWS4${secret}`, day),
  )
  return createHmac('sha256', key).update(text).digest('hex') === signature ? null : 'SignatureDoesNotMatch'
}

/** A store that speaks the part of the S3 protocol that files need, holds objects in memory and checks every signature. */
export async function startS3(bucket = 'files'): Promise<S3> {
  const objects = new Map<string, Buffer>()
  const uploads = new Map<string, Upload>()
  const requests: string[] = []
  const accessKeyId = 'AKIAEXAMPLE'
  const secretAccessKey = `secret/${randomUUID()}`

  const refused = (res: ServerResponse, status: number, code: string) =>
    res
      .writeHead(status, { 'content-type': 'application/xml' })
      .end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>${code}</Message></Error>`)
  const xml = (res: ServerResponse, text: string) =>
    res.writeHead(200, { 'content-type': 'application/xml' }).end(`<?xml version="1.0"?>${text}`)

  const server = createServer(async (req, res) => {
    const pieces: Buffer[] = []
    try {
      for await (const piece of req) pieces.push(piece as Buffer)
    } catch {
      return void res.destroy()
    }
    const body = Buffer.concat(pieces)
    const url = new URL(req.url as string, 'http://store')
    const path = decodeURIComponent(url.pathname).slice(1)
    // The bucket is the first label of a host name, or the first segment of the path.
    const host = req.headers.host as string
    const [named, ...rest] = [...(/^[\d.:]+$/.test(host) ? [] : [host.split('.')[0]]), ...path.split('/')]
    const key = rest.join('/')
    const parameters = url.searchParams
    parameters.delete('x-id')
    const name = `${req.method} /${key}${parameters.size > 0 ? `?${[...parameters.keys()].sort().join('&')}` : ''}`
    requests.push(name)
    const problem = signatureProblem(
      req,
      new URL(req.url as string, 'http://store'),
      body,
      accessKeyId,
      secretAccessKey,
    )
    if (problem) return refused(res, 403, problem)
    if (named !== s3.bucket) return refused(res, 404, 'NoSuchBucket')
    const refusal = s3.refuse(name)
    if (refusal) return refused(res, refusal.status, refusal.code)

    const uploadId = parameters.get('uploadId')
    if (uploadId !== null) {
      const upload = uploads.get(uploadId)
      if (upload?.key !== key) return refused(res, 404, 'NoSuchUpload')
      if (req.method === 'PUT') {
        upload.parts.set(Number(parameters.get('partNumber')), body)
        return res.writeHead(200, { etag: etag(body) }).end()
      }
      uploads.delete(uploadId)
      if (req.method === 'DELETE') return res.writeHead(204).end()
      const listed = [...body.toString().matchAll(/<Part>(.*?)<\/Part>/gs)].map(([, part]) => ({
        number: Number(/<PartNumber>(\d+)</.exec(part)?.[1]),
        etag: /<ETag>(.*?)</.exec(part)?.[1].replaceAll('&quot;', '"'),
      }))
      const parts = listed.map(({ number }) => upload.parts.get(number))
      if (parts.some((part, index) => !part || etag(part) !== listed[index].etag || listed[index].number !== index + 1))
        return refused(res, 400, 'InvalidPart')
      if (parts.slice(0, -1).some(part => (part as Buffer).length < 5 * 1024 * 1024))
        return refused(res, 400, 'EntityTooSmall')
      objects.set(key, Buffer.concat(parts as Buffer[]))
      return xml(res, `<CompleteMultipartUploadResult><Key>${key}</Key></CompleteMultipartUploadResult>`)
    }
    if (parameters.has('uploads')) {
      if (req.method === 'POST') {
        const id = randomUUID()
        uploads.set(id, { key, parts: new Map() })
        return xml(res, `<InitiateMultipartUploadResult><UploadId>${id}</UploadId></InitiateMultipartUploadResult>`)
      }
      const found = [...uploads].filter(([, upload]) => upload.key.startsWith(parameters.get('prefix') ?? ''))
      return xml(
        res,
        `<ListMultipartUploadsResult>${found.map(([id, upload]) => `<Upload><Key>${upload.key}</Key><UploadId>${id}</UploadId></Upload>`).join('')}</ListMultipartUploadsResult>`,
      )
    }
    if (req.method === 'PUT') {
      objects.set(key, body)
      return res.writeHead(200, { etag: etag(body) }).end()
    }
    if (req.method === 'DELETE') {
      objects.delete(key)
      return res.writeHead(204).end()
    }
    const object = objects.get(key)
    if (!object) return refused(res, 404, 'NoSuchKey')
    const range = /^bytes=(\d+)-(\d+)$/.exec(req.headers.range ?? '')
    if (!range) return res.writeHead(200, { 'content-length': object.length, etag: etag(object) }).end(object)
    const part = object.subarray(Number(range[1]), Number(range[2]) + 1)
    res.writeHead(206, { 'content-length': part.length, etag: etag(object) }).end(part)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const s3: S3 = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    bucket,
    accessKeyId,
    secretAccessKey,
    objects,
    uploads,
    requests,
    refuse: () => null,
    close: () =>
      new Promise<void>(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return s3
}
