import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const source = (file: string) => pathToFileURL(path.resolve(import.meta.dirname, '../../src', file)).href

/** Calls each function while the process cannot open a file and again once it can, and prints the codes of the errors. */
const PROBE = `
import fs from 'node:fs'
import openai from '${source('protocols/openai/module.ts')}'
import { attemptModel } from '${source('execution/providers/call.ts')}'
const { serve } = openai.extensions[0].value
const calls = [() => serve(), () => attemptModel({}, { config: {} }, 'm', { messages: [] }, { retries: 0 })]
const codes = () => Promise.all(calls.map(call => call().then(() => 'done', ({ code, name }) => code ?? name)))
const open = []
try {
  for (;;) open.push(fs.openSync('/dev/null'))
} catch {}
const during = await codes()
for (const file of open) fs.closeSync(file)
console.log(JSON.stringify([during, await codes()]))
`

describe('code that is loaded by the first call', function () {
  this.timeout(60_000)

  it('is loaded by the next one if the process had too many open files', () => {
    const limited = ['-c', 'ulimit -n 256; exec "$0" "$@"', process.execPath, '--input-type=module', '-e', PROBE]
    const [during, after] = JSON.parse(execFileSync('sh', limited, { encoding: 'utf8' }))
    assert.deepEqual(during, ['EMFILE', 'EMFILE'])
    assert.deepEqual(after, ['TypeError', 'TypeError'])
  })
})
