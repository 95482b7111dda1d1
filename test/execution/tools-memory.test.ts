import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { client, startApp } from '../support/app.ts'
import { HEAP_FLAGS, startProcess } from '../support/processes.ts'
import { made } from './tool-target.ts'

describe('calls of tools, a hundred large ones of one project concurrently', function () {
  this.timeout(240_000)

  it('leave a web process with a heap of 1 GiB alive, and are answered or refused with a retry time', async () => {
    const body = Buffer.from(JSON.stringify(Array.from({ length: 190_000 }, (_, n) => `value ${n} ${'y'.repeat(36)}`)))
    const server = createServer((request, response) => {
      request.resume()
      request.on('end', () => response.writeHead(200, { 'content-type': 'application/json' }).end(body))
    })
    // A connection that this side ends when it is idle would fail a call that is about to use it.
    server.keepAliveTimeout = 0
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const app = await startApp()
    const flags = [...HEAP_FLAGS, '--max-old-space-size=1024']
    const web = await startProcess('web', app.databaseUrl, {}, [], flags)
    try {
      const tenant = client(web.url, (await app.projectWith(['*'])).key.token)
      const tool = await made(tenant, { execute: { url } })
      const steps = [0, 1, 2].map(n => ({ id: `s${n}`, tool_id: tool.id }))
      const pipeline = await made(tenant, { type: 'pipeline', pipeline: { steps, output: { var: 'steps.s0' } } })
      const replies = await Promise.all(
        Array.from({ length: 100 }, () =>
          tenant.post(`/tools/${pipeline.id}/call`, {}).then(
            ({ status, body: given }) =>
              `${status} ${given.error?.meta?.cause?.code ?? given.error?.code ?? ''}`.trim(),
            error => String(error.cause?.code ?? error),
          ),
        ),
      )
      assert.equal(web.child.exitCode ?? web.child.signalCode, null)
      const others = replies.filter(reply => !['200', '503 SERVICE_NOT_READY', '422 SERVICE_NOT_READY'].includes(reply))
      assert.deepEqual(others, [])
      assert.equal((await tenant.get(`/tools/${tool.id}`)).status, 200)
    } finally {
      if (web.child.exitCode === null && web.child.signalCode === null) await web.kill()
      await app.close()
      server.closeAllConnections()
      server.close()
    }
  })
})
