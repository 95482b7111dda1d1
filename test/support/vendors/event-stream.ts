import { crc32 } from 'node:zlib'

/** Type of a header whose value is a text. */
const TEXT = 7

function header(name: string, value: string): Buffer {
  const [key, text] = [Buffer.from(name), Buffer.from(value)]
  const length = Buffer.alloc(2)
  length.writeUInt16BE(text.length)
  return Buffer.concat([Buffer.from([key.length]), key, Buffer.from([TEXT]), length, text])
}

const checksum = (bytes: Buffer): Buffer => {
  const sum = Buffer.alloc(4)
  sum.writeUInt32BE(crc32(bytes))
  return sum
}

/** Encodes a message of an AWS event stream: lengths, their checksum, headers, payload, checksum of all. */
export function eventMessage(headers: Record<string, string>, payload: unknown): Buffer {
  const head = Buffer.concat(Object.entries(headers).map(([name, value]) => header(name, value)))
  const body = Buffer.from(JSON.stringify(payload))
  const lengths = Buffer.alloc(8)
  lengths.writeUInt32BE(16 + head.length + body.length, 0)
  lengths.writeUInt32BE(head.length, 4)
  const message = Buffer.concat([lengths, checksum(lengths), head, body])
  return Buffer.concat([message, checksum(message)])
}
