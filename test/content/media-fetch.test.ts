import assert from 'node:assert/strict'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fetchImage } from '#content/files/media-fetch.ts'
import { AppError } from '#core/base/errors.ts'
import { loadModules } from '#core/modules/module.ts'
import { createEgress, type Egress } from '#core/net/egress.ts'
import { openResolver } from '#core/net/resolver.ts'
import { modules } from '#modules.ts'
import { pngHeader } from '../support/images.ts'

describe('images of URLs', () => {
  let server: Server
  let base: string
  let egress: Egress
  let answer: (response: ServerResponse, path: string) => void

  before(async () => {
    loadModules(modules)
    server = createServer((request, response) => {
      // A client that leaves before the end of a body is expected.
      response.on('error', () => {})
      answer(response, request.url as string)
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    egress = createEgress({ allowHosts: base.slice(7), resolve: openResolver({ servers: '' }) })
  })
  after(async () => {
    await egress?.close()
    server?.closeAllConnections()
    server?.close()
  })

  const fetched = (url: string, client = egress) => fetchImage({ egress: client }, { url, project_id: 'proj_1' })
  const reason = async (url: string, client?: Egress) => {
    const error = await fetched(url, client).then(
      () => null,
      (thrown: unknown) => thrown,
    )
    assert(error instanceof AppError && error.code === 'MEDIA_NOT_ACCEPTED', String(error))
    return error.meta?.reason
  }
  const image = (type: string, bytes: Buffer) => (response: ServerResponse) => {
    response.setHeader('content-type', type)
    response.end(bytes)
  }

  it('are fetched with at most three redirects', async () => {
    const bytes = pngHeader(10, 10)
    answer = (response, path) => {
      const left = Number(path.slice(1))
      if (left === 0) return image('image/png; q=1', bytes)(response)
      response.writeHead(302, { location: `/${left - 1}` })
      response.end()
    }
    assert.deepEqual(await fetched(`${base}/3`), { bytes, content_type: 'image/png' })
    assert.equal(await reason(`${base}/4`), 'url')
  })

  it('are checked like images of messages', async () => {
    answer = image('image/png', pngHeader(60_000, 60_000))
    assert.equal(await reason(base), 'dimensions')
    answer = image('image/png', Buffer.from('<html>'))
    assert.equal(await reason(base), 'content')
    for (const type of ['image/svg+xml', 'text/html', 'application/octet-stream']) {
      answer = image(type, pngHeader(10, 10))
      assert.equal(await reason(base), 'type')
    }
    answer = response => response.writeHead(404, { 'content-type': 'image/png' }).end(pngHeader(10, 10))
    assert.equal(await reason(base), 'url')
  })

  it('end at 20 MiB', async () => {
    answer = response => {
      response.setHeader('content-type', 'image/png')
      response.write(pngHeader(10, 10))
      const send = () => {
        while (!response.destroyed && response.write(Buffer.alloc(1024 * 1024)));
        if (!response.destroyed) response.once('drain', send)
      }
      send()
    }
    assert.equal(await reason(base), 'size')
  })

  it('are subject to the egress rule, after a redirect too', async () => {
    const closed = createEgress({ allowHosts: '', resolve: openResolver({ servers: '' }) })
    let asked = 0
    answer = response => {
      asked += 1
      response.writeHead(302, { location: 'http://169.254.169.254/latest/meta-data' })
      response.end()
    }
    assert.equal(await reason(base, closed), 'url')
    assert.equal(asked, 0)
    await closed.close()
    assert.equal(await reason(base), 'url')
    assert.equal(asked, 1)
    assert.equal(await reason('file:///etc/passwd'), 'url')
  })
})
