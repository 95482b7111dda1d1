import { createSocket, type RemoteInfo } from 'node:dgram'
import { isIPv4 } from 'node:net'
import ipaddr from 'ipaddr.js'

const TYPES = { 1: 'A', 28: 'AAAA' } as Record<number, 'A' | 'AAAA'>
const NXDOMAIN = 3
const SERVFAIL = 2

/** Addresses of a name; `silent` never answers, `unknown` says that there is none, `broken` that it fails. */
export type Entry = string[] | 'silent' | 'unknown' | 'broken'

export type NameServer = {
  /** IP:port */
  address: string
  /** `A name` for every question, in their order. */
  asked: string[]
  /** The records of a name, by its question. */
  answer: (name: string, type: 'A' | 'AAAA') => Entry
  close(): Promise<void>
}

/** A name server on 127.0.0.1 that speaks as much of DNS as resolving takes. */
export async function startNameServer(answer: NameServer['answer']): Promise<NameServer> {
  const socket = createSocket('udp4')
  socket.on('message', (question, from: RemoteInfo) => {
    const labels: string[] = []
    let at = 12
    for (let length = question[at]; length > 0; length = question[at]) {
      labels.push(question.toString('latin1', at + 1, at + 1 + length))
      at += 1 + length
    }
    const type = question.readUInt16BE(at + 1)
    const name = labels.join('.').toLowerCase()
    server.asked.push(`${TYPES[type]} ${name}`)
    const entry = server.answer(name, TYPES[type])
    if (entry === 'silent') return
    const addresses = Array.isArray(entry) ? entry.filter(address => isIPv4(address) === (type === 1)) : []
    const reply = Buffer.from(question.subarray(0, at + 5))
    const code = entry === 'unknown' ? NXDOMAIN : entry === 'broken' ? SERVFAIL : 0
    for (const [offset, value] of [0x8180 | code, 1, addresses.length, 0, 0].entries())
      reply.writeUInt16BE(value, 2 + 2 * offset)
    const records = addresses.flatMap(address => {
      const bytes = Buffer.from(ipaddr.parse(address).toByteArray())
      // The name of the question, this type, the Internet, for a minute.
      return [Buffer.from([0xc0, 12, 0, type, 0, 1, 0, 0, 0, 60, 0, bytes.length]), bytes]
    })
    socket.send(Buffer.concat([reply, ...records]), from.port, from.address)
  })
  await new Promise<void>(resolve => socket.bind(0, '127.0.0.1', resolve))
  const server: NameServer = {
    address: `127.0.0.1:${socket.address().port}`,
    asked: [],
    answer,
    close: () => new Promise(resolve => socket.close(() => resolve())),
  }
  return server
}
