import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { AppError } from '#core/base/errors.ts'
import { createLog } from '#core/base/log.ts'
import { SchemaChecks, SchemaError, type SchemaOf } from '#core/json-schema/checks.ts'
import { type ThreadJob, ThreadPool, threadTask } from '#core/threads/pool.ts'
import { eventually } from '../support/app.ts'
import { longestTurnAtBest } from '../support/event-loop.ts'

const log = createLog({ level: 'silent' })

const schemaOf = (schema: object, project = 'proj_a'): SchemaOf => ({
  project,
  text: JSON.stringify(schema),
  rules: { strict: true },
})

/** A schema that takes about 300 ms of a processor to compile; each number makes another. */
const costly = (number: number) => ({
  patternProperties: Object.fromEntries(
    Array.from({ length: 800 }, (_, index) => [`^a${index}x${number}.*b$`, { type: 'string' }]),
  ),
})

/** A schema by which any value takes all the time that there is. */
const endless = () => {
  const $defs: Record<string, object> = { d40: { type: 'string' } }
  for (let index = 0; index < 40; index++) {
    const next = { $ref: `#/$defs/d${index + 1}` }
    $defs[`d${index}`] = { allOf: [next, next] }
  }
  return { $ref: '#/$defs/d0', $defs }
}

describe('schemas in threads', () => {
  let threads: ThreadPool
  let checks: SchemaChecks
  const open = (count: number) => {
    threads = new ThreadPool({ threads: count, log })
    checks = new SchemaChecks(threads)
  }
  beforeEach(() => open(2))
  afterEach(() => threads.close())

  const problems = async (schema: object, value: unknown, project?: string) =>
    (await checks.problems(schemaOf(schema, project), [value]))[0]

  it('report problems of a schema and of values', async () => {
    await checks.check(schemaOf({ type: 'object' }))
    await assert.rejects(checks.check(schemaOf({ type: 'nope' })), (error: Error) => {
      assert.ok(error instanceof SchemaError)
      return /schema is invalid/.test(error.message)
    })
    await assert.rejects(checks.problems(schemaOf({ type: 'nope' }), [1]), SchemaError)
    assert.deepEqual(await problems({ required: ['a'] }, {}), [
      { keyword: 'required', pointer: '', message: "must have required property 'a'", missing: 'a' },
    ])
    assert.deepEqual(await problems({ required: ['__proto__'] }, JSON.parse('{"__proto__":1}')), [])
    const values = Array.from({ length: 1000 }, (_, index) => (index % 7 ? index : String(index)))
    const found = await checks.problems(schemaOf({ type: 'integer' }), values)
    assert.deepEqual(
      found.map(each => each.length),
      values.map(value => (typeof value === 'string' ? 1 : 0)),
    )
  })

  it('are compiled and run outside the event loop', async () => {
    await problems({ type: 'string' }, 1)
    const turn = await longestTurnAtBest(async time => {
      await checks.check(schemaOf(costly(time)))
      assert.deepEqual(
        (await problems({ ...endless(), title: String(time) }, {})).map(({ keyword }) => keyword),
        ['timeout'],
      )
    }, 40)
    assert.ok(turn < 40, `${turn} ms`)
  })

  it('are cached when refused, so that a second check costs nothing', async () => {
    const refused = schemaOf({
      patternProperties: Object.fromEntries(Array.from({ length: 4000 }, (_, index) => [`x{900}${index}`, {}])),
    })
    const cost = async () => {
      const before = process.cpuUsage()
      await assert.rejects(checks.check(refused), /takes too long to compile/)
      const { user, system } = process.cpuUsage(before)
      return (user + system) / 1000
    }
    assert.ok((await cost()) > 400)
    for (let time = 0; time < 20; time++) assert.ok((await cost()) < 100)
  })

  it('of one project do not delay another project', async () => {
    await problems({ type: 'string' }, 1)
    let done = 0
    const flood = Promise.allSettled(
      Array.from({ length: 40 }, async (_, number) => {
        await checks.check(schemaOf(costly(number), 'proj_hostile'))
        done++
      }),
    )
    for (let number = 0; number < 5; number++) {
      assert.deepEqual(await problems({ required: [`n${number}`] }, {}, `proj_${number}`), [
        {
          keyword: 'required',
          pointer: '',
          message: `must have required property 'n${number}'`,
          missing: `n${number}`,
        },
      ])
    }
    assert.ok(done < 20, `${done} of the other project's were done first`)
    await threads.close()
    await flood
  })

  it('give the same results on a busy machine', async function () {
    this.timeout(120_000)
    const properties = Object.fromEntries(
      Array.from({ length: 1000 }, (_, index) => [`property_${index}`, { type: 'string', maxLength: 100 }]),
    )
    const spinning = `while (true);`
    const { Worker } = await import('node:worker_threads')
    const busy = Array.from({ length: 8 }, () => new Worker(spinning, { eval: true }))
    try {
      await checks.check(schemaOf({ type: 'object', properties }))
      assert.deepEqual(
        (await problems({ type: 'object', properties }, { property_999: 1 })).map(({ pointer }) => pointer),
        ['/property_999'],
      )
      assert.deepEqual(
        (await problems(endless(), {})).map(({ keyword }) => keyword),
        ['timeout'],
      )
    } finally {
      await Promise.all(busy.map(worker => worker.terminate()))
    }
  })

  it('leave their queue when the caller is gone', async () => {
    await threads.close()
    open(1)
    const flood = Array.from({ length: 5 }, (_, number) => checks.check(schemaOf(costly(number))))
    const controller = new AbortController()
    const left = checks.check(schemaOf({ title: 'left' }), { signal: controller.signal })
    controller.abort(new Error('gone'))
    await assert.rejects(left, /gone/)
    await Promise.all(flood)
  })

  it('refuse values that would fill the memory of a thread', async () => {
    assert.deepEqual(
      (await problems({}, 'x'.repeat(4 * 1024 * 1024))).map(({ keyword }) => keyword),
      ['size'],
    )
    const found = await checks.problems(schemaOf({ type: 'integer' }), [1, 'x'.repeat(5_000_000), 'x'])
    assert.deepEqual(
      found.map(each => each.map(({ keyword }) => keyword)),
      [[], ['size'], ['type']],
    )
    // Millions of small objects in a value, and each of them wrong.
    const many = Array.from({ length: 1_000_000 }, () => ({}))
    assert.equal((await problems({ items: { type: 'string' } }, many)).length > 0, true)
  })
})

describe('threads', () => {
  // A program that runs commands in place of a schema: the limits within a thread end what a schema can do.
  const program = new URL(
    `data:text/javascript,${encodeURIComponent(`
      import { parentPort, threadId } from 'node:worker_threads'
      const kept = []
      parentPort.on('message', ({ input: text }) => {
        if (text === 'hang') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
        if (text === 'grow') for (;;) kept.push(new Array(10_000).fill(kept.length))
        if (text === 'throw') throw new Error('a fault')
        if (text === 'crash') process.exit(7)
        const ms = Number(text)
        setTimeout(() => parentPort.postMessage({ output: threadId, ms }), 3)
      })
    `)}`,
  )
  const task = threadTask<{ run(input: string): number }>('tests', program)
  let threads: ThreadPool
  const open = (options: { threads?: number; waitMs?: number; stuckMs?: number } = {}) => {
    threads = new ThreadPool({ threads: 2, log, program, ...options })
  }
  const job = (input: string, project = 'proj_a'): ThreadJob<string, number> => ({
    task,
    project,
    key: input,
    input,
    length: input.length,
  })
  const answered = 'answered'
  const run = async (input: string, project?: string) => {
    const outcome = await threads.run(job(input, project))
    return 'output' in outcome ? answered : outcome
  }
  const threadOf = async (project: string) => {
    const outcome = await threads.run(job('0', project))
    return 'output' in outcome ? outcome.output : outcome.broke
  }
  const unavailable = (error: Error) => {
    assert.ok(error instanceof AppError)
    assert.deepEqual(
      [error.code, error.status, error.meta, error.headers],
      ['SERVICE_NOT_READY', 503, { checks: { tests: 'busy' } }, { 'Retry-After': '5' }],
    )
    return true
  }
  afterEach(() => threads.close())

  it('are replaced when stuck, while others continue', async () => {
    // Above what a busy machine takes to start a thread, which counts too.
    open({ stuckMs: 3000 })
    const stuck = run('hang')
    assert.deepEqual(await run('1', 'proj_b'), answered)
    assert.deepEqual(await stuck, { broke: 'time' })
    assert.deepEqual(await run('1'), answered)
  })

  it('are replaced when their memory is full, and the job is retried in a new one', async function () {
    this.timeout(120_000)
    open()
    assert.deepEqual(await run('grow'), { broke: 'memory' })
    assert.deepEqual(await run('1'), answered)
  })

  it('that fail by a bug fail their job with its error', async () => {
    open()
    await assert.rejects(run('throw'), /a fault/)
    assert.deepEqual(await run('crash'), { broke: 'memory' })
    assert.deepEqual(await run('1'), answered)
  })

  it('serve the project first that has used less processor time', async () => {
    open({ threads: 1 })
    const order: string[] = []
    const ask = (project: string, ms: string) => run(ms, project).then(() => order.push(project))
    // Each job reports its text as its processor time. The budget of proj_a equals the budget of proj_b after ten seconds.
    await Promise.all([ask('proj_a', '4000'), ask('proj_a', '1'), ask('proj_b', '500'), ask('proj_b', '500')])
    assert.deepEqual(order, ['proj_a', 'proj_b', 'proj_b', 'proj_a'])
  })

  it('report the processor time that a schema took', async () => {
    threads = new ThreadPool({ threads: 1, log })
    const schemaTask = threadTask<typeof import('#core/json-schema/task.ts')>(
      'schemas',
      new URL('../../src/core/json-schema/task.ts', import.meta.url),
    )
    const msOf = async (schema: object) => {
      const input = { ...schemaOf(schema), values: [] }
      const outcome = await threads.run({ task: schemaTask, project: 'proj_a', input, length: 0 })
      return 'ms' in outcome ? outcome.ms : 0
    }
    const cheap = await msOf({ type: 'string' })
    assert.ok((await msOf(costly(0))) > Math.max(50, cheap))
  })

  it('never exceed the setting and never all serve one project', async () => {
    open({ threads: 3 })
    const of = async (project: string) => {
      const found = await Promise.all(Array.from({ length: 12 }, () => threadOf(project)))
      return new Set(found).size
    }
    assert.equal(await of('proj_a'), 2)
    const [one, other] = await Promise.all([of('proj_a'), of('proj_b')])
    assert.ok(one <= 3 && other <= 3)
    const ids = await Promise.all(['proj_a', 'proj_b', 'proj_c', 'proj_d'].map(threadOf))
    assert.equal(new Set(ids).size, 3)
  })

  it('do not serve a project at its limit, although one is idle', async () => {
    open({ stuckMs: 500 })
    await Promise.all([run('1', 'proj_a'), run('1', 'proj_b')])
    const order: string[] = []
    const ended = (name: string) => () => order.push(name)
    const stuck = run('hang', 'proj_a').then(ended('stuck'))
    await Promise.all([stuck, run('1', 'proj_a').then(ended('proj_a')), run('1', 'proj_b').then(ended('proj_b'))])
    assert.equal(order[0], 'proj_b')
    assert.deepEqual(order.slice(1).sort(), ['proj_a', 'stuck'])
  })

  it('are unavailable to a project without budget until it refills', async () => {
    open({ waitMs: 200 })
    // Said to have taken 5.2 seconds: 0.8 seconds until there is some time again.
    assert.deepEqual(await run('5200'), answered)
    await assert.rejects(run('1'), unavailable)
    assert.deepEqual(await run('1', 'proj_b'), answered)
    await sleep(700)
    assert.deepEqual(await eventually(() => run('1').catch(() => null)), answered)
  })

  it('accept at most 1,000 jobs and 16 MiB of a project', async () => {
    open()
    const many = Array.from({ length: 1101 }, () => run('0'))
    const ends = await Promise.allSettled(many)
    const refused = ends.filter(end => end.status === 'rejected')
    assert.equal(refused.length, 100)
    for (const { reason } of refused) unavailable(reason)
    const long = ' '.repeat(4 * 1024 * 1024)
    const large = await Promise.allSettled(Array.from({ length: 8 }, () => run(`${long}0`)))
    assert.equal(large.filter(end => end.status === 'rejected').length, 4)
    assert.deepEqual(await run('0', 'proj_b'), answered)
  })

  it('settle waiting and later jobs when they are closed', async () => {
    open()
    const waiting = [run('hang'), run('1'), run('1')]
    const ends = Promise.allSettled(waiting)
    await threads.close()
    await assert.rejects(run('1'), unavailable)
    for (const end of await ends) {
      assert.equal(end.status, 'rejected')
      unavailable((end as PromiseRejectedResult).reason)
    }
  })
})
