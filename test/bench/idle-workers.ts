import { loadConfig } from '#config.ts'
import { createLog } from '#core/base/log.ts'
import { concernsOf, startWorker } from '../../jobs/worker.ts'

/**
 * Starts many workers in one process, each with its own services, connections and loops. Usage: bin/launch
 * test/bench/idle-workers.ts COUNT NAME
 */
const [count, name] = process.argv.slice(2)
const log = createLog({ level: 'warn', base: { process: 'worker' } })
for (let n = 0; n < Number(count); n++) {
  const config = loadConfig({ ...process.env, INSTANCE_ID: `${name}-${n}` })
  await startWorker(config, log, concernsOf([], config))
}
console.log(JSON.stringify({ msg: 'worker is ready', port: 0 }))
