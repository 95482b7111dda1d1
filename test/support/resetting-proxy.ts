import net, { type AddressInfo, type Socket } from 'node:net'
import { tcpUrl } from './environment.ts'

export type ResettingProxy = {
  /** `databaseUrl` with the proxy's address in place of the server's. */
  url: string
  /** Whether connections that come are reset immediately. */
  refuse: boolean
  /** Resets one connection at random; false when there is none. */
  resetOne(): boolean
  resetAll(): void
  /** Keeps what the server answers from now on, until `release`. */
  hold(): void
  release(): void
  close(): Promise<void>
}

/** Sits between processes and PostgreSQL, and resets their connections as a broken network does: RST, not FIN. */
export async function startResettingProxy(databaseUrl: string): Promise<ResettingProxy> {
  const target = tcpUrl(databaseUrl)
  const pairs = new Set<[Socket, Socket]>()
  let held = false
  const reset = (pair: [Socket, Socket]) => {
    pairs.delete(pair)
    for (const socket of pair) socket.resetAndDestroy()
  }
  const server = net.createServer(inward => {
    inward.on('error', () => {})
    if (proxy.refuse) return void inward.resetAndDestroy()
    const outward = net.connect(Number(target.port), target.hostname)
    const pair: [Socket, Socket] = [inward, outward]
    pairs.add(pair)
    const end = () => {
      pairs.delete(pair)
      for (const socket of pair) socket.destroy()
    }
    for (const socket of pair) socket.on('error', end).on('close', end)
    inward.pipe(outward)
    if (!held) outward.pipe(inward)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = tcpUrl(databaseUrl)
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`
  const proxy: ResettingProxy = {
    url: url.href,
    refuse: false,
    resetOne() {
      const open = [...pairs]
      if (open.length === 0) return false
      reset(open[Math.floor(Math.random() * open.length)])
      return true
    },
    resetAll() {
      for (const pair of [...pairs]) reset(pair)
    },
    hold() {
      held = true
      for (const [inward, outward] of pairs) outward.unpipe(inward)
    },
    release() {
      held = false
      for (const [inward, outward] of pairs) outward.pipe(inward)
    },
    async close() {
      proxy.resetAll()
      await new Promise(resolve => server.close(resolve))
    },
  }
  return proxy
}
