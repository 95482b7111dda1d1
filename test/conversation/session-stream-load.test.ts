import assert from 'node:assert/strict'
import http from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { endUser } from './end-user-support.ts'
import { expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const STREAMS = 300
const PER_SESSION = 3

/** A stream of which only the text is kept; `pause` stops reading. */
function open(url: string, token: string, session: Json) {
  let text = ''
  let ended = false
  let response: http.IncomingMessage | undefined
  const request = http.get(
    `${url}/api/v1/sessions/${session.id}/stream`,
    { headers: { authorization: `Bearer ${token}` }, agent: false },
    answer => {
      response = answer
      answer.setEncoding('utf8')
      answer.on('data', (chunk: string) => {
        text += chunk
      })
      answer.once('close', () => {
        ended = true
      })
      answer.on('error', () => {})
    },
  )
  request.on('error', () => {})
  return {
    text: () => text,
    ended: () => ended,
    pause: () => response?.pause(),
    resume: () => response?.resume(),
    close: () => request.destroy(),
  }
}

describe('many session streams', function () {
  this.timeout(120_000)
  const app = forSuite(() =>
    startSessionApp({
      actions: ['agents:*', 'sessions:*'],
      workers: [],
      env: { STREAM_PING_INTERVAL_MS: '3600000' },
    }),
  )
  const streams: ReturnType<typeof open>[] = []
  after(async () => {
    for (const stream of streams) stream.close()
  })

  const token = () => app.key.token as string

  it('send no statement while nothing happens, and a message wakes the readers of its session only', async () => {
    const sessions: Json[] = []
    for (let n = 0; n < STREAMS / PER_SESSION; n++) sessions.push(await app.session())
    for (const session of sessions) for (let n = 0; n < PER_SESSION; n++) streams.push(open(app.url, token(), session))
    await eventually(() => streams.every(stream => stream.text().includes('event: ready')))
    // The writes that follow the requests, such as the use of the key.
    const quiet = async () => {
      const before = app.statements.length
      await sleep(500)
      return app.statements.length === before
    }
    await eventually(quiet)
    const before = app.statements.length
    await sleep(1500)
    assert.deepEqual(app.statements.slice(before), [])

    const sent = app.statements.length
    await app.say(sessions[7], 'only here')
    await eventually(() => streams.slice(21, 24).every(stream => stream.text().includes('only here')))
    const reads = app.statements.slice(sent).filter(text => text.includes('from session_frames f left join'))
    assert.equal(reads.length, 1, reads.join('\n'))
    const others = [...streams.slice(0, 21), ...streams.slice(24)]
    assert.ok(others.every(stream => !stream.text().includes('event: message')))
  })

  it('closes a reader that leaves more than 256 KiB unread, and the others continue', async () => {
    const session = await app.session()
    const slow = open(app.url, token(), session)
    const fast = open(app.url, token(), session)
    streams.push(slow, fast)
    await eventually(() => [slow, fast].every(stream => stream.text().includes('event: ready')))
    slow.pause()
    const text = 'x'.repeat(200_000)
    let sent = 0
    // Beyond what the sockets hold.
    for (; sent < 60; sent++) {
      expectStatus(await app.key.post(`/sessions/${session.id}/messages`, { message: text }), 201)
      const seen = sent + 1
      await eventually(() => fast.text().split('event: message').length - 1 === seen)
    }
    slow.resume()
    await eventually(slow.ended)
    assert.ok(slow.text().split('event: message').length - 1 < sent)
    assert.equal(fast.ended(), false)
  })

  it('checks the tokens of many end users with one statement for each ping', async () => {
    const checked = await startSessionApp({
      actions: ['actors:*', 'agents:*', 'generations:*', 'sessions:*'],
      workers: [],
      // Beyond the time for which principals are cached.
      env: { STREAM_PING_INTERVAL_MS: '6000' },
    })
    const opened: ReturnType<typeof open>[] = []
    try {
      for (let n = 0; n < 30; n++) {
        const user = await endUser(checked)
        const session = expectStatus(await user.post('/sessions', { agent_id: checked.agentId }), 201)
        opened.push(open(checked.url, user.token, session))
      }
      await eventually(() => opened.every(stream => stream.text().includes('event: ready')))
      const from = checked.statements.length
      await eventually(() => opened.every(stream => stream.text().split(': ping').length > 2))
      const checks = checked.statements.slice(from).filter(text => text.includes('from actors a where a.id'))
      assert.ok(checks.length >= 1 && checks.length <= 4, `${checks.length} statements`)
      assert.ok(opened.every(stream => !stream.ended()))
    } finally {
      for (const stream of opened) stream.close()
      await checked.close()
    }
  })

  it('checks the permissions of many readers with one statement for each ping', async () => {
    const checked = await startSessionApp({
      actions: ['agents:*', 'sessions:*'],
      workers: [],
      env: { STREAM_PING_INTERVAL_MS: '400' },
    })
    const open100: ReturnType<typeof open>[] = []
    try {
      for (let n = 0; n < 100; n++)
        open100.push(open(checked.url, checked.key.token as string, await checked.session()))
      await eventually(() => open100.every(stream => stream.text().includes(': ping')))
      const pings = () => open100[0].text().split(': ping').length - 1
      const from = checked.statements.length
      const first = pings()
      await eventually(() => pings() >= first + 5)
      const checks = checked.statements.slice(from).filter(text => text.includes('from sessions t where t.id = any'))
      assert.ok(
        checks.length >= 4 && checks.length <= pings() - first + 2,
        `${checks.length} for ${pings() - first} pings`,
      )
      const single = checked.statements.slice(from).filter(text => text.includes('from sessions t where t.id ='))
      assert.equal(single.length, checks.length, 'no read of a single session')
    } finally {
      for (const stream of open100) stream.close()
      await checked.close()
    }
  })
})
