import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

/** Starts a collector that reads and forgets, in a separate process so that its time is not measured. */
export async function startCollectorProcess(): Promise<{ url: string; child: ChildProcess; close(): void }> {
  const child = spawn(process.execPath, [import.meta.filename], { stdio: ['ignore', 'pipe', 'inherit'] })
  const [url] = await once(createInterface(child.stdout), 'line')
  return { url, child, close: () => void child.kill('SIGKILL') }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const server = createServer((req, res) => {
    req.resume().once('end', () => res.writeHead(200, { 'content-type': 'application/json' }).end('{}'))
  }).listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`))
}
