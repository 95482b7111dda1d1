import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Deployment } from '#local/drills/deployment.ts'
import { startModel } from '#local/drills/drill.ts'
import type { Kind, Prepared } from '#local/drills/kinds.ts'
import { startLoad } from '#local/drills/load.ts'
import { StalledError, waitUntilNone } from '#local/drills/wait.ts'
import { eventually } from '../../support/app.ts'

/** A checkout whose programs are given as scripts of the shell and of Node. */
function checkout(launch: string, program: string): string {
  const directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-checkout-'))
  fs.mkdirSync(path.join(directory, 'bin'))
  fs.writeFileSync(path.join(directory, 'bin/launch'), launch, { mode: 0o755 })
  fs.writeFileSync(path.join(directory, 'bin/muster.mjs'), program)
  return directory
}

describe('steps of drills', () => {
  it('wait as long as something progresses, and fail when nothing does', async () => {
    let open = 20
    await waitUntilNone('work', () => --open, { limitMs: 50, pauseMs: 5 })
    assert.equal(open, 0)
    const stalled = waitUntilNone('work', () => 1, { limitMs: 50, pauseMs: 5 })
    await assert.rejects(stalled, new StalledError('work: no progress within 0.05 s'))
  })

  it('fail by the error of a caller', async () => {
    const kind = (name: string, start: Kind['start']): Kind => ({ name, start, list: () => '', outcome: () => null })
    const failing = kind('failing', async () => {
      throw new TypeError('no ID')
    })
    const waiting = kind('waiting', () => new Promise<string>(() => {}))
    for (const once of [false, true]) {
      const load = startLoad([{ ...failing, once }, waiting], {} as Prepared, () => [])
      await assert.rejects(load.progress(), /no ID/)
      await assert.rejects(load.end(), /no ID/)
    }
  })

  it('record a process that fails when it stops', async () => {
    const launch = `#!/bin/sh
trap 'exit 3' TERM
echo '{"message":"web is ready","port":1}'
while :; do sleep 0.1; done`
    const directory = checkout(launch, '')
    const deployment = new Deployment({ databaseUrl: '' })
    try {
      await deployment.start('web', directory)
      await deployment.replace('web', directory)
      assert.equal(deployment.uncleanStops.length, 1)
      assert.match(deployment.uncleanStops[0], /^web exited with 3: /)
    } finally {
      await deployment.close()
      fs.rmSync(directory, { recursive: true })
    }
  })

  it('end with their programs when the deployment is closed', async () => {
    const program = `import fs from 'node:fs'
fs.writeFileSync('pid', String(process.pid))
process.on('SIGTERM', () => {})
setInterval(() => {}, 1000)`
    const directory = checkout('', program)
    const deployment = new Deployment({ databaseUrl: '' })
    const file = path.join(directory, 'pid')
    try {
      const ended = assert.rejects(deployment.command([], directory), { signal: 'SIGKILL' })
      await eventually(() => fs.existsSync(file) && fs.readFileSync(file, 'utf8') !== '', { what: 'the program' })
      await deployment.close()
      await ended
      const pid = fs.readFileSync(file, 'utf8')
      await eventually(() => !fs.existsSync(`/proc/${pid}`), { what: 'the end of the program' })
      await assert.rejects(deployment.start('web', directory), /the deployment is closed/)
    } finally {
      fs.rmSync(directory, { recursive: true })
    }
  })

  it('let the model answer by its scripts from the first request after a restart', async () => {
    const double = await startModel('127.0.0.1')
    const body = JSON.stringify({ model: 'caller/m', messages: [{ role: 'user', content: 'x' }] })
    const call = () =>
      fetch(`${double.url}/v1/chat/completions`, { method: 'POST', body }).then(
        async response => ((await response.json()) as any).choices[0].finish_reason,
        () => null,
      )
    try {
      await double.stop()
      assert.equal(await call(), null)
      const restarted = double.restart()
      let reason: string | null = null
      while (reason === null) reason = await call()
      assert.equal(reason, 'tool_calls')
      await restarted
    } finally {
      await double.stop()
    }
  })
})
