import assert from 'node:assert/strict'
import { startApp, type TestApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

/** Parts of a path that are no ID: NUL, truncated and invalid percent encodings, and invalid UTF-8. */
const PARTS = ['%00', 'a%00b', '%E0%A4%A', '%', '%zz', '%ff%fe', '%ed%a0%80', '%2e%2e', '%2500']

type Parameter = { name: string; in: string }
type Operation = { parameters?: (Parameter | { $ref: string })[] }

describe('a path or query that cannot be stored or decoded', () => {
  const app = forSuite(() => startApp({ env: { A2A_MOUNT: 'true' } }))
  const project = forSuite(() => app.project())
  let paths: [string, string, Operation][]
  let shared: Record<string, Parameter>
  before(async () => {
    const description: any = await (await fetch(`${app.url}/openapi.json`)).json()
    shared = description.components.parameters ?? {}
    paths = Object.entries(description.paths as Record<string, Record<string, Operation>>).flatMap(([path, methods]) =>
      Object.entries(methods)
        .filter(([method]) => ['get', 'post', 'put', 'patch', 'delete'].includes(method))
        .map(([method, operation]): [string, string, Operation] => [method, path, operation]),
    )
  })

  const send = async (method: string, path: string, token: string | null) => {
    const hasBody = !['get', 'delete'].includes(method)
    const response = await fetch(app.url + path, {
      method: method.toUpperCase(),
      redirect: 'manual',
      headers: {
        ...(token && { authorization: `Bearer ${token}` }),
        ...(hasBody && { 'content-type': 'application/json' }),
      },
      body: hasBody ? '{}' : undefined,
    })
    const { status, headers } = response
    await response.body?.cancel()
    return { status, headers, text: `${method} ${path}: ${status}` }
  }

  const sharedParameter = (parameter: Parameter | { $ref: string }): Parameter =>
    '$ref' in parameter ? shared[parameter.$ref.split('/').at(-1) as string] : parameter

  /** Sends each request, ten at a time, and returns the answers with a fault. */
  const faults = async (requests: [string, string, string | null][]) => {
    const found: string[] = []
    const queue = requests.values()
    const run = async () => {
      for (const request of queue) {
        const { status, headers, text } = await send(...request)
        if (status >= 500 || headers.get('x-content-type-options') !== 'nosniff') found.push(text)
      }
    }
    await Promise.all(Array.from({ length: 10 }, run))
    return found
  }

  it('is no fault of any operation, as a parameter of the path', async () => {
    const requests = paths
      .filter(([, path]) => path.includes('{'))
      .flatMap(([method, path]) =>
        PARTS.map((part): [string, string, string] => [
          method,
          path.replaceAll(/\{\w+\}/g, part),
          project.key.token as string,
        ]),
      )
    assert.ok(requests.length > 1000)
    assert.deepEqual(await faults(requests), [])
  })

  it('is no fault of any operation, as a parameter of the query', async () => {
    const requests = paths.flatMap(([method, path, { parameters }]) =>
      (parameters ?? [])
        .map(sharedParameter)
        .flatMap((parameter): [string, string, string][] =>
          parameter.in === 'query' && method === 'get'
            ? ['%00', '%ff'].map(part => [
                method,
                `${path.replaceAll(/\{\w+\}/g, 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e')}?${parameter.name}=${part}`,
                project.key.token as string,
              ])
            : [],
        ),
    )
    assert.ok(requests.length > 100)
    assert.deepEqual(await faults(requests), [])
  })

  const mounted = [
    ['get', '/ag-ui/{}'],
    ['post', '/ag-ui/{}'],
    ['post', '/ui/v1/chat/{}'],
    ['get', '/ui/v1/chat/{}/{}'],
    ['get', '/ui/v1/chat/{}/{}/stream'],
    ['post', '/ui/v1/chat/{}/{}/stop'],
    ['post', '/a2a/{}'],
    ['get', '/a2a/{}/tasks/{}'],
    ['get', '/a2a/{}/.well-known/agent-card.json'],
    ['get', '/openai/v1/{}'],
    ['get', '/openai/v1/models/{}'],
    ['get', '/openai/v1/files/{}/content'],
    ['get', '/openai/v1/responses/{}?after={}'],
    ['delete', '/openai/v1/files/{}'],
    ['post', '/mcp?toolset={}'],
    ['get', '/mcp/{}'],
    ['get', '/docs/{}'],
    ['get', '/app/{}'],
    ['get', '/app/assets/{}'],
    ['get', '/oauth/device/{}'],
    ['get', '/oauth/authorize?client_id={}'],
    ['post', '/oauth/token'],
    ['get', '/.well-known/{}'],
    ['get', '/auth/{}'],
    ['get', '/api/v1/{}'],
    ['get', '/{}'],
  ]

  it('is no fault of any mount or page, with and without a credential', async () => {
    const requests = mounted.flatMap(([method, path]) =>
      PARTS.flatMap(part =>
        [project.key.token, app.admin.token, null].map((token): [string, string, string | null] => [
          method,
          path.replaceAll('{}', part),
          token,
        ]),
      ),
    )
    assert.deepEqual(await faults(requests), [])
  })

  it('is truncated in the log', async () => {
    await project.key.get(`/${'x'.repeat(12_000)}`)
    await app.anonymous.get(`/../../openai/v1/${'y'.repeat(12_000)}`)
    const longest = Math.max(...app.logs.map(line => line.length))
    assert.ok(longest < 2000, `${longest}`)
  })
})

describe('pages of any origin', () => {
  const origin = 'https://evil.example.test'
  const allowedOf = async (app: TestApp, method: string, path: string) => {
    const response = await fetch(app.url + path, {
      method,
      headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'content-type' },
    })
    await response.body?.cancel()
    return response.headers.get('access-control-allow-origin')
  }

  it('may not read metrics or create the first user, unless they are listed', async () => {
    const app = await startApp()
    const listed = await startApp({ env: { CORS_ALLOWED_ORIGINS: origin } })
    try {
      for (const path of ['/metrics', '/Metrics/']) {
        assert.equal(await allowedOf(app, 'GET', path), null)
        assert.equal(await allowedOf(app, 'OPTIONS', path), null)
        assert.equal(await allowedOf(listed, 'GET', path), null)
      }
      for (const path of ['/api/v1/users/bootstrap', '/api/v1/users/bootstrap/'])
        assert.equal(await allowedOf(app, 'OPTIONS', path), null)
      assert.equal(await allowedOf(listed, 'OPTIONS', '/api/v1/users/bootstrap'), origin)
      assert.equal(await allowedOf(app, 'OPTIONS', '/api/v1/users/login'), '*')
    } finally {
      await app.close()
      await listed.close()
    }
  })
})

describe('usernames that resemble each other', () => {
  const app = forSuite(startApp)

  it('are one, in every spelling', async () => {
    const password = 'a fine password'
    assert.equal((await app.admin.post('/users', { username: 'Zoë-Admin', password })).status, 201)
    for (const username of ['Zoe\u0308-Admin', 'ｚoë-Admin', 'ZOË-admin'])
      assert.equal((await app.admin.post('/users', { username, password })).status, 409, username)
    for (const username of ['Zoë\u200b-Admin', 'Zoë\u00ad-Admin', 'Zoë-Admin\u2060', 'Zoë\u202e-Admin', 'a\u3164b']) {
      const refused = await app.admin.post('/users', { username, password })
      assert.equal(refused.status, 400, username)
      assert.equal(refused.body.error.meta.problems[0].path, 'username')
    }
    const signedIn = await app.anonymous.post('/users/login', { username: 'Zoe\u0308-admin', password })
    assert.equal(signedIn.status, 200, JSON.stringify(signedIn.body))
  })

  it('keep emojis in usernames', async () => {
    const user = await app.admin.post('/users', { username: 'ﬁne 👩‍💻 ❤️', password: 'a fine password' })
    assert.equal(user.body.username, 'fine 👩‍💻 ❤️')
  })
})
