import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')

/**
 * Uses of the clock of the process that no row keeps and that are compared with no row, by file. Rows and times of rows use
 * the clock of the database or `systemClock`, which is corrected by it.
 */
const OWN_CLOCK: Record<string, string> = {
  'jobs/worker.ts': 'a file of the host',
  'src/automation/orchestrations/runs/reads/stream.ts': 'a pause',
  'src/content/index/embeddings/providers.ts': 'Retry-After of another host',
  'src/control/system/status.ts': 'the start and heartbeat of the answering process',
  'src/conversation/chats/completion.ts': 'the time of an answer',
  'src/conversation/sessions/typing.ts': 'expiry in the process',
  'src/core/api/event-stream.ts': 'a pause',
  'src/core/api/ndjson.ts': 'a pause',
  'src/core/work/subscription.ts': 'a wait',
  'src/core/work/takeover.ts': 'the measured clock itself',
  'src/core/base/clock.ts': 'the corrected clock itself',
  'src/core/services/stall-thread.ts': 'the log',
  'src/execution/providers/retry-after.ts': 'Retry-After of another host',
  'src/execution/tools/http.ts': 'Retry-After of another host',
  'src/identity/company-sign-in/provider.ts': 'a token of another host',
  'src/identity/console/mount.ts': 'expiry in the process',
  'src/identity/oauth/provider.ts': 'an assertion of another host',
  'src/identity/oauth/request.ts': 'a request object of another host',
  'src/mcp/listen.ts': 'a wait',
  'src/mcp/tasks.ts': 'the time of an answer about a deleted record',
  'src/protocols/openai/chat-completions.ts': 'the time of an answer',
  'src/protocols/openai/responses-format.ts': 'the time of an answer',
}

describe('the clock of a process', () => {
  it('is in no row: rows have the time of the database, or of the clock that is corrected by it', () => {
    const files = ['src', 'jobs']
      .flatMap(folder => fs.globSync(`${folder}/**/*.ts`, { cwd: root }))
      .filter(file => !/^src\/(operator|local)\//.test(file))
      .filter(file => /Date\.now\(\)|new Date\(\)/.test(fs.readFileSync(path.join(root, file), 'utf8')))
    assert.deepEqual(files.toSorted(), Object.keys(OWN_CLOCK).sort())
  })
})
