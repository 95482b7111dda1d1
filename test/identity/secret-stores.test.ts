import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { loadConfig } from '#config.ts'
import { manualClock } from '#core/base/clock.ts'
import type { ConfigError } from '#core/base/config.ts'
import type { AppError } from '#core/base/errors.ts'
import { ExternalValueRequired, openSecret } from '#identity/secrets/resolve.ts'
import { call, json, made, startTarget, type Target, type TargetRequest } from '../execution/tool-target.ts'
import { type Reply, startApp, type TestApp, type TestProject } from '../support/app.ts'
import { KEY_ID, SECRET_KEY, signatures } from '../support/aws-signature.ts'
import { testEnvironment } from '../support/environment.ts'

const TOKEN = 'hvs.a-token-of-vault'
const REGION = 'eu-central-1'

describe('secrets in external stores', () => {
  const clock = manualClock()
  let app: TestApp
  let vault: Target
  let aws: Target
  let target: Target
  let project: TestProject
  let directory: string
  /** What Vault holds by path below its mount, and Secrets Manager by name. */
  let inVault: Record<string, Record<string, unknown>>
  let inAws: Record<string, string>

  before(async () => {
    process.env.AWS_ACCESS_KEY_ID = KEY_ID
    process.env.AWS_SECRET_ACCESS_KEY = SECRET_KEY
    ;[vault, aws, target] = await Promise.all([startTarget(), startTarget(), startTarget()])
    directory = await mkdtemp(path.join(tmpdir(), 'vault-token-'))
    const tokenFile = path.join(directory, 'token')
    await writeFile(tokenFile, `${TOKEN}\n`)
    app = await startApp({
      clock,
      env: {
        SECRETS_VAULT_ADDR: vault.url,
        SECRETS_VAULT_TOKEN_FILE: tokenFile,
        SECRETS_VAULT_NAMESPACE: 'apps',
        SECRETS_VAULT_MOUNT: 'kv',
        SECRETS_AWS_REGION: REGION,
        SECRETS_AWS_ENDPOINT: `${aws.url}/`,
        SECRETS_STORE_TIMEOUT_MS: '2000',
      },
    })
  })
  after(async () => {
    delete process.env.AWS_ACCESS_KEY_ID
    delete process.env.AWS_SECRET_ACCESS_KEY
    await app.close()
    await Promise.all([vault, aws, target].map(server => server.close()))
    await rm(directory, { recursive: true })
  })
  beforeEach(async () => {
    project = await app.project()
    inVault = {}
    inAws = {}
    for (const server of [vault, aws, target]) server.requests.length = 0
    vault.answer = (request, response) => vaultAnswer(request)(request, response)
    aws.answer = (request, response) => awsAnswer(request)(request, response)
    target.answer = json({ ok: true })
  })

  /** As Vault answers a read of the second version of its key-value engine. */
  function vaultAnswer({ method, url, headers }: TargetRequest) {
    if (method !== 'GET') return json({ errors: ['unsupported operation'] }, 405)
    if (headers['x-vault-token'] !== TOKEN || headers['x-vault-namespace'] !== 'apps')
      return json({ errors: ['2 errors occurred: * permission denied'] }, 403)
    const data = inVault[decodeURIComponent(url).replace('/v1/kv/data/', '')]
    if (!data) return json({ errors: [] }, 404)
    return json({ data: { data, metadata: { version: 3, destroyed: false } } })
  }

  /** As Secrets Manager answers, which reads no request that is not signed. */
  function awsAnswer(request: TargetRequest) {
    const { expected, signature } = signatures(request, { region: REGION, service: 'secretsmanager' })
    if (signature !== expected) return json({ __type: 'InvalidSignatureException', message: 'no' }, 400)
    assert.equal(request.headers['x-amz-target'], 'secretsmanager.GetSecretValue')
    const { SecretId } = JSON.parse(request.body)
    const value = inAws[SecretId]
    if (value === undefined)
      return json({ __type: 'ResourceNotFoundException', Message: `can't find ${SecretId}` }, 400)
    return json({ ARN: 'arn:aws:x', Name: SecretId, SecretString: value, VersionId: '1' })
  }

  const make = (source: object, more: object = {}): Promise<Reply> =>
    project.key.post('/secrets', { name: 'external', source, ...more })
  const made201 = async (type: string, at: string): Promise<string> => {
    const reply = await make({ type, path: at })
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    return reply.body.id
  }
  const reading = (id: string) => {
    const services = app.servicesOf(project.id)
    return openSecret(services.pool, services, project.id, id)
  }
  const failsWith = (reason: string, id: string) => (error: AppError) => {
    assert.deepEqual([error.code, error.meta], ['SECRET_NOT_DECRYPTABLE', { secret_id: id, reason }])
    assert.ok(!error.message.includes(TOKEN))
    return true
  }

  it('return their source and have a value', async () => {
    const { status, body } = await make({ type: 'vault', path: 'openai#api_key' })
    assert.equal(status, 201)
    assert.deepEqual([body.has_value, body.source], [true, { type: 'vault', path: 'openai#api_key' }])
    assert.deepEqual((await project.key.get(`/secrets/${body.id}`)).body, body)
    assert.equal(vault.requests.length, 0)
  })

  it('require a value or a source, with a path inside the project folder', async () => {
    const source = { type: 'vault', path: 'x' }
    for (const body of [
      { name: 'x' },
      { name: 'x', value: 'v', source },
      { name: 'x', source: null },
      { name: 'x', source: { type: 'gcp', path: 'x' } },
      { name: 'x', source: { ...source, token: 'x' } },
      ...[
        '',
        '/x',
        'x/',
        'a//b',
        '../other',
        'a/../../b',
        './a',
        'a/..',
        'a#',
        'a#b#c',
        'a?b',
        'a%2e%2e',
        'a b',
        'x'.repeat(513),
      ].map(at => ({ name: 'x', source: { type: 'vault', path: at } })),
    ]) {
      const { status } = await project.key.post('/secrets', body)
      assert.equal(status, 400, JSON.stringify(body))
    }
    const id = await made201('vault', 'x')
    assert.equal((await project.key.patch(`/secrets/${id}`, { value: 'v', source })).status, 400)
    assert.equal((await project.key.patch(`/secrets/${id}`, { source: null })).status, 400)
  })

  it('are refused for a store that is not configured', async () => {
    const plain = await startApp()
    const { key } = await plain.project()
    for (const type of ['vault', 'aws_secrets_manager']) {
      const { status, body } = await key.post('/secrets', { name: 'x', source: { type, path: 'x' } })
      assert.deepEqual([status, body.error.meta.problems[0].path], [400, 'source.type'])
    }
    await plain.close()
  })

  it('require a prefix with the project ID at start', () => {
    for (const SECRETS_STORE_PREFIX of ['shared/', 'muster/{project_id}', '{project}/', 'a b/{project_id}/'])
      assert.throws(
        () => loadConfig({ ...testEnvironment(''), SECRETS_STORE_PREFIX }),
        (error: ConfigError) => error.variable === 'SECRETS_STORE_PREFIX',
      )
    assert.throws(() => loadConfig({ ...testEnvironment(''), SECRETS_VAULT_ADDR: 'vault:8200' }), /SECRETS_VAULT_ADDR/)
  })

  it('are used by tools, and masked in their responses', async () => {
    const id = await made201('vault', 'shop#token')
    inVault[`muster/${project.id}/shop`] = { token: 'the-token-of-the-shop' }
    target.answer = (request, response) => response.writeHead(500).end(`no entry with ${request.headers.authorization}`)
    const tool = await made(project.key, {
      type: 'http',
      execute: { url: target.url, headers: { Authorization: `Bearer {{secret:${id}}}` } },
    })
    const reply = await call(project.key, tool.id, {})
    assert.equal(target.last().headers.authorization, 'Bearer the-token-of-the-shop')
    assert.equal(reply.body.error.meta.tool_response_body, 'no entry with Bearer ***')
    assert.ok(!app.logs.some(line => line.includes('the-token-of-the-shop') || line.includes(TOKEN)))
  })

  it('are used by AI providers', async () => {
    const id = await made201('vault', 'model')
    inVault[`muster/${project.id}/model`] = { value: 'sk-of-the-model' }
    target.answer = json({ object: 'list', data: [{ id: 'm', object: 'model' }] })
    const provider = await project.key.post('/ai-providers', {
      name: 'p',
      provider: 'custom',
      base_url: `${target.url}/v1`,
      default_model: 'm',
      secret_id: id,
    })
    assert.equal(provider.status, 201, JSON.stringify(provider.body))
    assert.equal((await project.key.get(`/ai-providers/${provider.body.id}/models`)).status, 200)
    assert.equal(target.last().headers.authorization, 'Bearer sk-of-the-model')
  })

  it('are read only below the folder of their project', async () => {
    const id = await made201('vault', 'deep/er')
    const other = await app.project()
    inVault[`muster/${other.id}/deep/er`] = { value: 'of another project' }
    await assert.rejects(reading(id), failsWith('not_in_store', id))
    inVault[`muster/${project.id}/deep/er`] = { value: 'of this project' }
    assert.equal(await reading(id), 'of this project')
    assert.deepEqual([...new Set(vault.requests.map(({ url }) => url))], [`/v1/kv/data/muster/${project.id}/deep/er`])
  })

  it('are read once for concurrent requests, and again after a minute', async () => {
    const id = await made201('vault', 'kept')
    const at = `muster/${project.id}/kept`
    inVault[at] = { value: 'first' }
    const values = await Promise.all(Array.from({ length: 20 }, () => reading(id)))
    assert.deepEqual([new Set(values), vault.requests.length], [new Set(['first']), 1])
    inVault[at] = { value: 'second' }
    clock.advance(59_000)
    assert.equal(await reading(id), 'first')
    clock.advance(2000)
    assert.equal(await reading(id), 'second')
    assert.equal(vault.requests.length, 2)
    delete inVault[at]
    clock.advance(61_000)
    await assert.rejects(reading(id), failsWith('not_in_store', id))
    await assert.rejects(reading(id), failsWith('not_in_store', id))
  })

  it('read nothing while a transaction holds a connection', async () => {
    const id = await made201('vault', 'inside')
    inVault[`muster/${project.id}/inside`] = { value: 'seen inside' }
    const readInside = () =>
      app.servicesOf(project.id).write(tx => openSecret(tx, app.servicesOf(project.id), project.id, id))
    await assert.rejects(readInside(), ExternalValueRequired)
    assert.equal(vault.requests.length, 0)
    await reading(id)
    assert.deepEqual([await readInside(), vault.requests.length], ['seen inside', 1])
  })

  it('report why a store returned no value', async () => {
    const id = await made201('vault', 'odd#field')
    const at = `muster/${project.id}/odd`
    const fails = (reason: string) => assert.rejects(reading(id), failsWith(reason, id))
    await fails('not_in_store')
    inVault[at] = { other: 'x' }
    await fails('not_in_store')
    for (const field of ['', 7, { a: 1 }, 'x'.repeat(65_537)]) {
      inVault[at] = { field }
      await fails('unusable_value')
    }
    vault.answer = json({ errors: [`permission denied for ${TOKEN}`] }, 403)
    await fails('store_denied')
    vault.answer = json({ errors: ['Vault is sealed'] }, 503)
    await fails('store_unreachable')
    vault.answer = (_, response) => response.writeHead(302, { location: target.url }).end()
    await fails('store_unreachable')
    vault.answer = (_, response) => response.end('{"data"')
    await fails('store_unreachable')
    vault.answer = (_, response) => response.end(`{"data":{"data":{"field":"${'x'.repeat(600_000)}"}}}`)
    await fails('store_unreachable')
    vault.answer = () => {}
    await fails('store_unreachable')
    assert.equal(target.requests.length, 0)
  })

  it('answer SECRET_NOT_DECRYPTABLE with the reason where they are used', async () => {
    const id = await made201('vault', 'gone')
    const tool = await made(project.key, {
      type: 'http',
      execute: { url: target.url, headers: { Key: `{{secret:${id}}}` } },
    })
    const { status, body } = await call(project.key, tool.id, {})
    assert.deepEqual([status, body.error.code, body.error.meta.reason], [500, 'SECRET_NOT_DECRYPTABLE', 'not_in_store'])
    assert.equal(target.requests.length, 0)
  })

  it('are read from AWS Secrets Manager with signed requests', async () => {
    const whole = await made201('aws_secrets_manager', 'plain')
    const field = await made201('aws_secrets_manager', 'group/json#api_key')
    inAws[`muster/${project.id}/plain`] = 'a plain text'
    inAws[`muster/${project.id}/group/json`] = JSON.stringify({ api_key: 'a field', n: 1 })
    assert.deepEqual([await reading(whole), await reading(field)], ['a plain text', 'a field'])
    const missing = await made201('aws_secrets_manager', 'missing')
    await assert.rejects(reading(missing), failsWith('not_in_store', missing))
    aws.answer = json({ __type: 'com.amazon#AccessDeniedException', Message: 'not authorized' }, 400)
    await assert.rejects(reading(missing), failsWith('store_denied', missing))
    aws.answer = json({ __type: 'InternalServiceError' }, 500)
    await assert.rejects(reading(missing), failsWith('store_unreachable', missing))
  })

  it('move between a store and the database, and back', async () => {
    const id = await made201('vault', 'moved')
    inVault[`muster/${project.id}/moved`] = { value: 'outside' }
    assert.equal(await reading(id), 'outside')
    const inside = await project.key.patch(`/secrets/${id}`, { value: 'inside' })
    assert.deepEqual([inside.status, inside.body.source], [200, null])
    assert.equal(await reading(id), 'inside')
    const back = await project.key.post(`/secrets/${id}/rollback`)
    assert.deepEqual(back.body.source, { type: 'vault', path: 'moved' })
    assert.equal(await reading(id), 'outside')
    assert.equal((await project.key.post(`/secrets/${id}/rollback`)).body.source, null)
    assert.equal(await reading(id), 'inside')
    const renamed = await project.key.patch(`/secrets/${id}`, { source: { type: 'vault', path: 'moved' }, name: 'n' })
    assert.deepEqual([renamed.body.name, renamed.body.source.path], ['n', 'moved'])
    const still = await project.key.patch(`/secrets/${id}`, { name: 'm' })
    assert.deepEqual(still.body.source, { type: 'vault', path: 'moved' })
  })

  it('are read with the current token of the file', async () => {
    const id = await made201('vault', 'renewed')
    inVault[`muster/${project.id}/renewed`] = { value: 'v' }
    const file = app.config.SECRETS_VAULT_TOKEN_FILE as string
    await writeFile(file, 'hvs.expired')
    await assert.rejects(reading(id), failsWith('store_denied', id))
    await writeFile(file, TOKEN)
    assert.equal(await reading(id), 'v')
    await rm(file)
    clock.advance(61_000)
    await assert.rejects(reading(id), failsWith('store_unreachable', id))
    await writeFile(file, TOKEN)
  })
})
