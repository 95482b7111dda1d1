import { processSingleton } from '../base/process-singleton.ts'
import { ThreadPool } from './pool.ts'

/** Threads of a process for work on data of callers that takes long. */
export const threads = processSingleton(
  ({ config, log }) => new ThreadPool({ threads: config.SCHEMA_THREADS, log }),
  pool => pool.close(),
)
