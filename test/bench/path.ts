import inspector from 'node:inspector/promises'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { startAgentApp } from '../execution/fixtures.ts'
import { json, made, startTarget } from '../execution/tool-target.ts'
import type { Row } from './rows.ts'

/**
 * The code that a turn with one tool call passes, from the request to the answer, web and worker in one process: files
 * and functions of src that ran. Nothing is timed. Usage: npm run bench path [-- --list], which prints the files.
 */
export async function run({ list = false } = {}): Promise<Row[]> {
  const target = await startTarget()
  target.answer = json({ ok: true })
  const app = await startAgentApp({ inProcess: true, env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
  const session = new inspector.Session()
  try {
    const { id: tool_id } = await made(app.key, { name: 'look', execute: { url: target.url } })
    const agent = await app.agent({ tool_bindings: [{ tool_id }] })
    const prompt = `@double ${JSON.stringify([{ tool_calls: [{ name: 'look', args: {} }] }, { text: 'done' }])}`
    const turn = async () => {
      const { status, body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt })
      if (status !== 200 || body.output?.content !== 'done') throw new Error(`${status} ${JSON.stringify(body)}`)
    }
    session.connect()
    await session.post('Profiler.enable')
    await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
    // The first turn loads modules and fills caches.
    await turn()
    await session.post('Profiler.takePreciseCoverage')
    await turn()
    const { result } = await session.post('Profiler.takePreciseCoverage')
    const source = path.resolve(import.meta.dirname, '../../src')
    const passed = result.flatMap(({ url, functions }) => {
      const file = url.startsWith('file:') ? path.relative(source, fileURLToPath(url)) : '..'
      // The scripted model is part of the measurement only.
      if (file.startsWith('..') || file.startsWith('local/')) return []
      const called = functions.filter(({ functionName, ranges }) => functionName !== '' && ranges[0].count > 0)
      return called.length === 0 ? [] : [{ file, functions: called.length }]
    })
    if (list) console.table(passed.sort((a, b) => a.file.localeCompare(b.file)))
    const functions = passed.reduce((sum, each) => sum + each.functions, 0)
    return [
      {
        what: 'files of src that a turn with one tool call passes',
        value: passed.length,
        unit: '',
        target: '<= 130',
        isCount: true,
      },
      { what: 'named functions that it calls', value: functions, unit: '' },
    ]
  } finally {
    session.disconnect()
    await app.close()
    await target.close()
  }
}
