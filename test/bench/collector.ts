import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { pathToFileURL } from 'node:url'

/** Starts a collector that only counts spans, in a separate process so that its time is not measured. */
export async function startCollectorProcess(): Promise<{ url: string; spans(): Promise<number>; close(): void }> {
  const child = spawn(process.execPath, [import.meta.filename], { stdio: ['ignore', 'pipe', 'inherit'] })
  const [url] = await once(createInterface(child.stdout), 'line')
  return {
    url,
    spans: async () => Number(await (await fetch(url)).text()),
    close: () => void child.kill('SIGKILL'),
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  let spans = 0
  const server = createServer(async (req, res) => {
    const body = await text(req)
    if (req.method === 'GET') res.end(String(spans))
    else {
      spans += body.split('"startTimeUnixNano"').length - 1
      res.writeHead(200, { 'content-type': 'application/json' }).end('{}')
    }
  }).listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`))
}
