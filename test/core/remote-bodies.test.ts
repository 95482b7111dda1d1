import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { client, eventually, startApp, type TestApp } from '../support/app.ts'
import { bomb, CODINGS, FRAMINGS, startBombs } from '../support/bombs.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

const MIB = 1024 * 1024
/** Several times the time for the 16 MiB after which an answer is abandoned, and a fifth of what a bomb would. */
const BOUND = 200 * MIB

/** Bytes of memory that a process holds, and the most it ever held, as the kernel counts them. */
async function resident(pid: number): Promise<{ now: number; most: number }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  const bytes = (name: string) => Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(status)?.[1]) * 1024
  return { now: bytes('VmRSS'), most: bytes('VmHWM') }
}

describe('small remote bodies that unpack to a gigabyte', function () {
  this.timeout(300_000)
  let app: TestApp
  let key: Awaited<ReturnType<TestApp['project']>>['key']
  let project: string
  let bombs: Awaited<ReturnType<typeof startBombs>>
  const processes: TestProcess[] = []

  before(async function () {
    if (process.platform !== 'linux') this.skip()
    bombs = await startBombs()
    for (const coding of CODINGS) assert.ok(bomb(coding).length < 2 * MIB, coding)
    app = await startApp()
    ;({ id: project, key } = await app.project())
  })
  after(async () => {
    await Promise.all(processes.map(each => each.kill()))
    await app?.close()
    await bombs?.close()
  })

  const start = async (kind: 'web' | 'worker', env: Record<string, string> = {}, args: string[] = []) => {
    const settings = { PROVIDER_MAX_RETRIES: '0', EMBEDDING_PROVIDER: 'openai', EMBEDDING_MODEL: 'm', ...env }
    const made = await startProcess(kind, app.databaseUrl, settings, args)
    processes.push(made)
    return made
  }
  const provider = async (base_url: string): Promise<string> => {
    const made = await key.post('/ai-providers', { name: 'p', provider: 'custom', default_model: 'm', base_url })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body.id
  }
  const base = (coding: string, framing: string) => `${bombs.url}/${encodeURIComponent(coding)}/${framing}/v1`

  /** By how much the most that a process ever held is above its memory before a task. */
  async function growth(worked: TestProcess, work: () => Promise<void>): Promise<number> {
    const { now } = await resident(worked.pid)
    await work()
    return (await resident(worked.pid)).most - now
  }
  const fits = (grown: number, what: string) => assert.ok(grown < BOUND, `${Math.round(grown / MIB)} MiB for ${what}`)

  it('do not fill a web process that lists models or tries a provider', async () => {
    const web = await start('web')
    const at = client(web.url, key.token)
    for (const coding of CODINGS)
      for (const framing of FRAMINGS) {
        const id = await provider(base(coding, framing))
        const grown = await growth(web, async () => {
          const listed = await at.get(`/ai-providers/${id}/models`)
          assert.deepEqual([listed.status, listed.body.error.code], [502, 'MODEL_LISTING_FAILED'])
          const checked = await at.post(`/ai-providers/${id}/check`)
          assert.equal(checked.body.error?.code, 'AI_PROVIDER_ERROR', JSON.stringify(checked.body))
        })
        fits(grown, `${coding}, ${framing}`)
      }
    assert.deepEqual([...new Set(bombs.asked)], ['gzip'])
  })

  it('do not hold up a web process with millions of values in an answer', async () => {
    const many = createServer((_request, response) => {
      response.setHeader('content-type', 'application/json')
      response.end(`{"choices":[${'{},'.repeat(4_500_000)}{}]}`)
    })
    await new Promise<void>(resolve => many.listen(0, '127.0.0.1', resolve))
    try {
      const web = await start('web')
      const id = await provider(`http://127.0.0.1:${(many.address() as AddressInfo).port}/v1`)
      const grown = await growth(web, async () => {
        const checked = await client(web.url, key.token).post(`/ai-providers/${id}/check`)
        assert.equal(checked.body.error?.code, 'AI_PROVIDER_ERROR', JSON.stringify(checked.body))
      })
      fits(grown, 'millions of values')
    } finally {
      many.close()
    }
  })

  it('do not fill a web process that calls a token endpoint', async () => {
    const directory = await mkdtemp(path.join(tmpdir(), 'muster-identity-'))
    try {
      const account = (coding: string) => ({
        type: 'external_account',
        audience: '//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/p',
        subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
        token_url: 'http://127.0.0.1:9/',
        credential_source: { url: base(coding, 'exact') },
      })
      for (const coding of ['gzip', 'gzip, gzip']) {
        const file = path.join(directory, 'account.json')
        await writeFile(file, JSON.stringify(account(coding)))
        const web = await start('web', {
          PROVIDER_AMBIENT_CREDENTIALS: 'true',
          GOOGLE_APPLICATION_CREDENTIALS: file,
          GOOGLE_VERTEX_PROJECT: 'project',
        })
        const at = client(web.url, key.token)
        const vertex = { name: 'v', provider: 'vertex', default_model: 'm' }
        const { id } = (await at.post('/ai-providers', vertex)).body
        const asked = bombs.asked.length
        const grown = await growth(web, async () => {
          const listed = await at.get(`/ai-providers/${id}/models`)
          assert.deepEqual([listed.status, listed.body.error.code], [502, 'MODEL_LISTING_FAILED'])
        })
        assert.ok(bombs.asked.length > asked)
        fits(grown, coding)
        await web.kill()
      }
    } finally {
      await rm(directory, { recursive: true })
    }
  })

  it('do not fill a worker that runs turns, streamed or not', async () => {
    const worker = await start('worker', {}, ['generation'])
    for (const coding of CODINGS)
      for (const framing of FRAMINGS) {
        const ai_provider_id = await provider(base(coding, framing))
        const agent = await key.post('/agents', { name: 'agent', ai_provider_id })
        const grown = await growth(worker, async () => {
          for (const stream of [false, true]) {
            const asked = await key.post(`/agents/${agent.body.id}/generate`, { prompt: 'x', stream })
            const id = stream ? /"(gen_\w+)"/.exec(String(asked.body))?.[1] : asked.body.generation_id
            const ended = await eventually(
              async () => {
                const { body } = await key.get(`/generations/${id}`)
                return body.status === 'completed' || body.status === 'failed' ? body : null
              },
              { within: 120_000, what: `end of ${id}: ${asked.status} ${JSON.stringify(asked.body).slice(0, 300)}` },
            )
            assert.equal(ended.status, 'failed')
          }
        })
        fits(grown, `${coding}, ${framing}`)
      }
  })

  for (const coding of CODINGS)
    it(`do not fill a web process that embeds texts: ${coding}`, async () => {
      const web = await start('web', { EMBEDDING_BASE_URL: base(coding, 'exact'), EMBEDDING_API_KEY: 'sk-x' })
      const grown = await growth(web, async () => {
        const embedded = await client(web.url, key.token).post('/embeddings', { input: 'x' })
        assert.equal(embedded.status, 502)
      })
      fits(grown, coding)
      await web.kill()
    })

  it('do not fill a web process that keeps files in a bucket', async () => {
    const bucket = (coding: string) => ({
      AWS_ACCESS_KEY_ID: 'AKIATEST',
      AWS_SECRET_ACCESS_KEY: 'secret',
      FILES_STORAGE_PROVIDER: 's3',
      FILES_S3_BUCKET: 'files',
      FILES_S3_REGION: 'eu-central-1',
      FILES_S3_ENDPOINT: base(coding, 'exact'),
      FILES_S3_FORCE_PATH_STYLE: 'true',
    })
    const web = await start('web', bucket('gzip'))
    const at = client(web.url, key.token)
    const grown = await growth(web, async () => {
      const made = await at.post('/files/upload/base64', { filename: 'f', content: 'eA==' })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      // Read as a whole, and as it comes.
      assert.equal((await at.get(`/files/${made.body.id}/download/base64`)).status, 500)
      await at.get(`/files/${made.body.id}/download`).catch(() => {})
    })
    fits(grown, 'a bucket')
  })

  it('do not fill a worker that delivers webhooks', async () => {
    const worker = await start('worker', {}, ['delivery'])
    const hooks: string[] = []
    for (const coding of CODINGS) {
      const hook = { project_id: project, name: coding, url: base(coding, 'chunked'), events: ['secrets.*'] }
      hooks.push((await app.admin.post('/webhooks', hook)).body.id)
    }
    const grown = await growth(worker, async () => {
      await app.admin.post('/secrets', { project_id: project, name: 'n', value: 'v' })
      for (const id of hooks)
        await eventually(async () => {
          const { body } = await app.admin.get(`/webhook-deliveries?webhook_id=${id}&status=completed`)
          return body.total === 1
        })
    })
    fits(grown, 'webhooks')
  })
})
