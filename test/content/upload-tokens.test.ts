import { strict as assert } from 'node:assert'
import { createHash } from 'node:crypto'
import { deleteEndedTokens } from '#content/files/store.ts'
import { manualClock } from '#core/base/clock.ts'
import { type Client, client, startApp } from '../support/app.ts'
import { codeOf, createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { download, formOf, handmade, type Part, sendForm, sendRaw } from './file-support.ts'

const problem = (reply: { body: any }) => reply.body?.error?.meta?.problems?.[0]

describe('upload tokens', () => {
  const clock = manualClock()
  const app = forSuite(() =>
    startApp({
      env: {
        FILES_MAX_UPLOAD_BYTES: '2000000',
        FILES_INLINE_MAX_BYTES: '500000',
        UPLOAD_TOKEN_TTL_SECONDS: '1200',
        BASE_URL: 'https://files.example.com/base/',
      },
      clock,
    }),
  )
  let project: string
  let key: Client
  let keyId: string
  let counter = 0
  const issue = async (body: object = {}, caller = key) =>
    (await createdBy(caller, '/files/presigned-url', body)) as {
      upload_token: string
      upload_url: string
      expires_at: string
    }
  const send = (token: string, parts: (Part | [string, string])[], headers?: Record<string, string>) =>
    sendForm(app.url, null, `/files/upload/${token}`, formOf(parts), { headers })
  const json = (token: string, body: object) => app.anonymous.post(`/files/upload/${token}`, body)
  const name = () => `f${++counter}.txt`
  /** The answer to an upload whose body never comes. */
  const beforeBody = async (token: string) => {
    const { head, type } = handmade('b', name())
    const reply = await sendRaw(app.url, {
      path: `/files/upload/${token}`,
      headers: { 'content-type': type, 'content-length': '1500000' },
      pieces: [head],
      after: 'destroy',
    })
    assert.ok('status' in reply, 'answered although the body never came')
    return [reply.status, codeOf(reply)]
  }

  before(async () => {
    ;({ id: project, key, keyId } = await app.project())
  })
  afterEach(async () => assert.deepEqual(await app.rows("select id from file_blobs where state = 'staging'"), []))

  it('are made of 256 bits, of which only a hash is kept, and expire', async () => {
    const made = await issue({ prefix: '/in', filename: 'a.txt' })
    assert.match(made.upload_token, /^upt_[A-Za-z0-9_-]{43}$/)
    assert.equal(made.upload_url, `https://files.example.com/base/api/v1/files/upload/${made.upload_token}`)
    assert.equal(new Date(made.expires_at).getTime(), clock.now().getTime() + 1_200_000)
    const [row] = await app.rows('select * from upload_tokens where token_hash = $1', [
      createHash('sha256').update(made.upload_token).digest(),
    ])
    assert.ok(row)
    assert.ok(!JSON.stringify(row).includes(made.upload_token))
    const short = await issue({ expires_in_seconds: 60 })
    assert.equal(new Date(short.expires_at).getTime(), clock.now().getTime() + 60_000)
    assert.ok(!app.logs.some(line => line.includes(made.upload_token)))
    const [entry] = await app.rows("select action from audit_entries where action = 'files:UploadFile' limit 1")
    assert.ok(entry)
  })

  it('are refused for what could never be uploaded', async () => {
    for (const body of [
      { prefix: '/.system/x' },
      { filename: '.system' },
      { prefix: '../..' },
      { filename: '..' },
      { filename: 'x'.repeat(256) },
      { content_type: 'x' },
      { max_bytes: 0 },
      { max_bytes: 2_000_001 },
      { max_bytes: '5' },
      { expires_in_seconds: 59 },
      { expires_in_seconds: 3601 },
      { metadata: {} },
    ])
      assert.equal((await key.post('/files/presigned-url', body)).status, 400, JSON.stringify(body))
    const other = await app.project()
    assert.equal((await key.post('/files/presigned-url', { project_id: other.id })).status, 403)
    assert.equal((await app.anonymous.post('/files/presigned-url', {})).status, 401)
    const stranger = await app.user()
    assert.equal((await stranger.post('/files/presigned-url', { project_id: project })).status, 403)
  })

  it('let anybody upload one file to where they were made for, once', async () => {
    const { upload_token } = await issue({ prefix: '/in/', filename: 'fixed.txt', content_type: 'text/x-issued' })
    const made = await send(upload_token, [
      ['filename', 'named by the upload.txt'],
      ['metadata', '{"a":1}'],
      ['tags', '{"t":"1"}'],
      { bytes: 'abc', name: 'sent.bin' },
    ])
    assert.equal(made.status, 201, JSON.stringify(made.body))
    assert.equal(made.body.path, '/in/fixed.txt')
    assert.equal(made.body.project_id, project)
    assert.equal(made.body.content_type, 'text/x-issued')
    assert.deepEqual([made.body.metadata, made.body.tags, made.body.size], [{ a: 1 }, { t: '1' }, 3])
    assert.equal((await download(app.url, key.token, made.body.id)).bytes.toString(), 'abc')
    const [entry] = await app.rows('select * from audit_entries where resource_public_id = $1', [made.body.id])
    assert.deepEqual(
      [entry.action, entry.principal_type, entry.principal_id, entry.detail.via, entry.project_id],
      ['files:UploadFile', 'api_key', keyId, 'upload_token', project],
    )
    const again = await send(upload_token, [{ bytes: 'x', name: 'other' }])
    assert.deepEqual([again.status, codeOf(again)], [409, 'UPLOAD_TOKEN_USED'])
    assert.ok(!app.logs.some(line => line.includes(upload_token)))
  })

  it('take the name and the type of the upload where none was given with them', async () => {
    const one = await send((await issue({ prefix: '/n' })).upload_token, [{ bytes: 'x', name: 'part.md' }])
    assert.deepEqual([one.body.path, one.body.content_type], ['/n/part.md', 'text/markdown'])
    const two = await send((await issue({ prefix: '/n', content_type: 'text/x-a' })).upload_token, [
      ['filename', 'field.txt'],
      ['content_type', 'text/x-b'],
      { bytes: 'x', name: 'part.txt' },
    ])
    assert.deepEqual([two.body.path, two.body.content_type], ['/n/field.txt', 'text/x-b'])
    const claimed = await send((await issue({ prefix: '/n', content_type: 'text/x-a' })).upload_token, [
      { bytes: 'x', name: 'claimed', type: 'text/x-part' },
    ])
    assert.equal(claimed.body.content_type, 'text/x-part')
    const three = await json((await issue({ prefix: '/n' })).upload_token, {
      content: 'eA==',
      filename: 'j.txt',
      metadata: { a: 1 },
    })
    assert.equal(three.status, 201, JSON.stringify(three.body))
    assert.deepEqual([three.body.path, three.body.size, three.body.metadata], ['/n/j.txt', 1, { a: 1 }])
    const four = await json((await issue({ prefix: '/n' })).upload_token, { content: '' })
    assert.equal(four.body.path, `/n/${four.body.id}`)
    for (const field of ['prefix', 'project_id']) {
      const { upload_token } = await issue()
      const refused = await send(upload_token, [[field, '/x'], { bytes: 'x', name: name() }])
      assert.deepEqual([refused.status, problem(refused).path], [400, field])
    }
  })

  it('stay usable until an upload succeeds', async () => {
    await issue()
    const { upload_token } = await issue({ prefix: '/retry', filename: 'a.txt', max_bytes: 10 })
    const blocker = (await key.post('/files', { prefix: '/retry', filename: 'a.txt' })).body
    const attempts: [Promise<{ status: number; body: any }>, number][] = [
      [send(upload_token, []), 400],
      [send(upload_token, [['metadata', '{}']]), 400],
      [json(upload_token, {}), 400],
      [json(upload_token, { content: 7 }), 400],
      [json(upload_token, { content: '@' }), 400],
      [app.anonymous.post(`/files/upload/${upload_token}`), 400],
      [send(upload_token, [{ bytes: 'x' }, ['metadata', '[]']]), 400],
      [send(upload_token, [{ bytes: 'x' }]), 409],
      [send(upload_token, [{ bytes: 'x'.repeat(11) }]), 413],
      [json(upload_token, { content: Buffer.alloc(11).toString('base64') }), 413],
    ]
    for (const [attempt, status] of attempts) {
      const reply = await attempt
      assert.equal(reply.status, status, JSON.stringify(reply.body))
    }
    const large = await issue()
    const inline = (bytes: number) => json(large.upload_token, { content: Buffer.alloc(bytes).toString('base64') })
    assert.deepEqual([(await inline(500_001)).status, (await inline(500_000)).status], [413, 201])
    await key.delete(`/files/${blocker.id}`)
    assert.equal((await send(upload_token, [{ bytes: 'x'.repeat(10) }])).status, 201)
  })

  it('create one file from ten concurrent uploads', async () => {
    const { upload_token } = await issue({ prefix: '/race' })
    const race = await Promise.all(
      Array.from({ length: 10 }, (_, index) => send(upload_token, [{ bytes: `x${index}`, name: `r${index}.txt` }])),
    )
    assert.deepEqual(race.map(({ status }) => status).sort(), [201, ...Array(9).fill(409)])
    for (const reply of race) if (reply.status === 409) assert.equal(codeOf(reply), 'UPLOAD_TOKEN_USED')
    assert.equal((await key.get('/files?path_prefix=/race')).body.total, 1)
  })

  it('are judged before the body is read: unknown, used, expired', async () => {
    const unknown = await send(`upt_${'x'.repeat(43)}`, [{ bytes: 'x' }])
    assert.deepEqual([unknown.status, codeOf(unknown)], [404, 'UPLOAD_TOKEN_NOT_FOUND'])
    for (const odd of ['nonsense', '%00', '%F0%9F%99%82', 'x'.repeat(5000)])
      assert.equal((await app.anonymous.post(`/files/upload/${odd}`, {})).status, 404, odd.slice(0, 20))
    const { upload_token } = await issue({ expires_in_seconds: 60 })
    const used = await issue({ expires_in_seconds: 60 })
    assert.equal((await send(used.upload_token, [{ bytes: 'x', name: name() }])).status, 201)
    clock.advance(59_999)
    const { head, type, tail } = handmade('b', name())
    // Begun in time and still being sent when it runs out.
    const slow = sendRaw(app.url, {
      path: `/files/upload/${(await issue({ expires_in_seconds: 60 })).upload_token}`,
      headers: { 'content-type': type },
      pieces: (async function* () {
        yield head
        await new Promise(resolve => setTimeout(resolve, 200))
        clock.advance(61_000)
        yield tail
      })(),
    })
    const done = await slow
    assert.ok('status' in done)
    assert.equal(done.status, 201)
    const late = await send(upload_token, [{ bytes: 'x', name: name() }])
    assert.deepEqual([late.status, codeOf(late)], [410, 'UPLOAD_TOKEN_EXPIRED'])
    assert.equal(
      codeOf(await send(used.upload_token, [{ bytes: 'x' }])),
      'UPLOAD_TOKEN_USED',
      'used comes before expired',
    )
    assert.deepEqual(await beforeBody(upload_token), [410, 'UPLOAD_TOKEN_EXPIRED'])
  })

  it('ignore a bearer that is sent along, and count against no requests quota', async () => {
    const { id, key: bound } = await app.project()
    const { upload_token } = await issue({}, bound)
    await app.admin.post('/quotas', {
      project_id: id,
      scope: 'project',
      metric: 'requests',
      limit: 1,
      window: 'rolling_1h',
    })
    await bound.get('/files')
    await bound.get('/files')
    const refused = await bound.get('/files')
    assert.equal(refused.status, 429)
    const made = await send(upload_token, [{ bytes: 'x', name: name() }], { authorization: 'Bearer nonsense' })
    assert.equal(made.status, 201)
  })

  it('count their bytes against the storage quota and survive its refusal', async () => {
    const full = await app.project()
    const { upload_token } = await issue({}, full.key)
    await app.admin.post('/quotas', {
      project_id: full.id,
      scope: 'project',
      metric: 'storage_bytes',
      limit: 10,
      window: 'current',
    })
    const over = await send(upload_token, [{ bytes: 'x'.repeat(11) }])
    assert.deepEqual([over.status, codeOf(over)], [409, 'QUOTA_STORAGE_EXCEEDED'])
    assert.equal((await send(upload_token, [{ bytes: 'x'.repeat(10) }])).status, 201)
    const late = await issue({}, full.key)
    await app.rows(
      'insert into storage_snapshots (project_id, day, bytes, chunk_count) values ($1, current_date, 11, 0)',
      [full.id],
    )
    assert.deepEqual(await beforeBody(late.upload_token), [409, 'QUOTA_STORAGE_EXCEEDED'])
  })

  it('end with the right that they were made by', async () => {
    const policy = (
      await app.admin.post('/policies', {
        document: { statement: [{ effect: 'Allow', action: ['files:*'], resource: [`srn:${project}:file:/drop/*`] }] },
      })
    ).body
    const made = await app.admin.post('/project-keys', { project_id: project, policy_ids: [policy.id] })
    const narrow = client(app.url, made.body.secret)
    assert.equal((await narrow.post('/files/presigned-url', { prefix: '/else' })).status, 403)
    const inside = await issue({ prefix: '/drop' }, narrow)
    const later = await issue({ prefix: '/drop' }, narrow)
    const last = await issue({ prefix: '/drop' }, narrow)
    assert.equal((await send(inside.upload_token, [{ bytes: 'x', name: name() }])).status, 201)
    await app.admin.put(`/policies/${policy.id}`, {
      document: { statement: [{ effect: 'Allow', action: ['files:*'], resource: [`srn:${project}:file:/other/*`] }] },
    })
    const moved = await send(later.upload_token, [{ bytes: 'x', name: name() }])
    assert.deepEqual([moved.status, codeOf(moved)], [404, 'UPLOAD_TOKEN_NOT_FOUND'])
    await app.admin.put(`/policies/${policy.id}`, {
      document: { statement: [{ effect: 'Allow', action: ['files:GetFile'], resource: ['*'] }] },
    })
    assert.deepEqual(await beforeBody(last.upload_token), [404, 'UPLOAD_TOKEN_NOT_FOUND'])
    const lost = await send(last.upload_token, [{ bytes: 'x', name: name() }])
    assert.deepEqual([lost.status, codeOf(lost)], [404, 'UPLOAD_TOKEN_NOT_FOUND'])
  })

  it('are held to what policies say of the tags that come with the file', async () => {
    const document = {
      statement: [
        {
          effect: 'Allow',
          action: ['files:UploadFile'],
          resource: [`srn:${project}:file:*`],
          condition: { StringNotEquals: { 'svc:RequestTag/team': 'red' } },
        },
      ],
    }
    const policy = (await app.admin.post('/policies', { document })).body
    const made = await app.admin.post('/project-keys', { project_id: project, policy_ids: [policy.id] })
    const { upload_token } = await issue({}, client(app.url, made.body.secret))
    const tagged = (team: string) => send(upload_token, [['tags', `{"team":"${team}"}`], { bytes: 'x', name: name() }])
    const refused = await tagged('red')
    assert.deepEqual([refused.status, codeOf(refused)], [404, 'UPLOAD_TOKEN_NOT_FOUND'])
    assert.equal((await tagged('blue')).status, 201)
  })

  it('end with the key and the project that they were made in', async () => {
    const { id, key: bound, keyId } = await app.project()
    const one = await issue({}, bound)
    assert.equal((await app.admin.delete(`/project-keys/${keyId}`)).status, 204)
    assert.equal(codeOf(await send(one.upload_token, [{ bytes: 'x' }])), 'UPLOAD_TOKEN_NOT_FOUND')
    const two = await issue({ project_id: id }, app.admin)
    const three = await issue({ project_id: id }, app.admin)
    assert.equal((await send(two.upload_token, [{ bytes: 'x', name: name() }])).status, 201)
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.equal(codeOf(await send(three.upload_token, [{ bytes: 'x' }])), 'UPLOAD_TOKEN_NOT_FOUND')
  })

  it('are forgotten a day after their end', async () => {
    const used = await issue()
    assert.equal((await send(used.upload_token, [{ bytes: 'x', name: name() }])).status, 201)
    const open = await issue({ expires_in_seconds: 3600 })
    await deleteEndedTokens(app.pool, new Date(clock.now().getTime() - 1))
    assert.equal(codeOf(await send(used.upload_token, [{ bytes: 'x' }])), 'UPLOAD_TOKEN_USED')
    await deleteEndedTokens(app.pool, new Date(clock.now().getTime() + 1))
    assert.equal(codeOf(await send(used.upload_token, [{ bytes: 'x' }])), 'UPLOAD_TOKEN_NOT_FOUND')
    assert.equal((await send(open.upload_token, [{ bytes: 'x', name: name() }])).status, 201)
  })
})
