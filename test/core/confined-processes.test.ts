import assert from 'node:assert/strict'
import { ConfinedProcesses } from '#core/threads/confined-processes.ts'

type Echo = { pid: number; text: string }

describe('confined processes', () => {
  const program = {
    file: new URL('./confined-echo.ts', import.meta.url),
    args: [],
    reads: [],
    memoryBytes: 512 * 1024 * 1024,
    heapMebibytes: 64,
  }
  const open: ConfinedProcesses<{ delayMs: number }, never, Echo>[] = []
  const opened = () => {
    const processes = new ConfinedProcesses<{ delayMs: number }, never, Echo>(program)
    open.push(processes)
    const run = (pieces: string[], size: number, { timeoutMs = 10_000, delayMs = 0 } = {}) =>
      processes.run({ delayMs }, () => ({ size, pieces: pieces.map(piece => Buffer.from(piece)) }), { timeoutMs })
    const echo = async (text: string): Promise<Echo> => {
      const outcome = await run([text], text.length)
      assert.equal(outcome.kind, 'answered')
      return (outcome as { answer: Echo }).answer
    }
    return { run, echo, close: () => processes.close() }
  }
  const isRunning = (pid: number): boolean => {
    try {
      return process.kill(pid, 0)
    } catch {
      return false
    }
  }

  afterEach(() => {
    for (const processes of open.splice(0)) processes.close()
  })

  it('a process is used again for the next request', async () => {
    const { echo } = opened()
    const { pid, text } = await echo('one')
    assert.equal(text, 'one')
    assert.deepEqual(await echo('two'), { pid, text: 'two' })
  })

  it('content that is not of its size is refused, and none of it reaches the next request', async () => {
    const { run, echo } = opened()
    const { pid } = await echo('one')
    await assert.rejects(run(['OVER', 'secret'], 4), /more than 4 bytes/)
    await assert.rejects(run(['short'], 9), /fewer than 9 bytes/)
    const next = await echo('next')
    assert.equal(next.text, 'next')
    assert.notEqual(next.pid, pid)
  })

  it('a process that accepts no content is killed at the time limit', async () => {
    const { run, echo } = opened()
    const { pid } = await echo('one')
    process.kill(pid, 'SIGSTOP')
    const pieces = Array.from({ length: 64 }, () => 'x'.repeat(65_536))
    assert.deepEqual(await run(pieces, 64 * 65_536, { timeoutMs: 500 }), { kind: 'timeout' })
    while (isRunning(pid)) await new Promise(resolve => setTimeout(resolve, 20))
    assert.notEqual((await echo('two')).pid, pid)
  })

  it('a request whose process ends after it served others is repeated in a new process', async () => {
    const { run, echo } = opened()
    const { pid } = await echo('one')
    const running = run(['two'], 3, { delayMs: 200 })
    setTimeout(() => process.kill(pid, 'SIGUSR2'), 50)
    const outcome = await running
    assert.equal(outcome.kind, 'answered')
    const { answer } = outcome as { answer: Echo }
    assert.equal(answer.text, 'two')
    assert.notEqual(answer.pid, pid)
  })

  it('an active request ends when the processes are closed', async () => {
    const { run, close } = opened()
    const active = run(['x'], 1, { delayMs: 60_000, timeoutMs: 60_000 })
    await new Promise(resolve => setTimeout(resolve, 50))
    close()
    assert.deepEqual(await active, { kind: 'exited', exit: 'SIGKILL' })
  })
})
