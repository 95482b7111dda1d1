import { RESERVED } from '../../../content/paths.ts'
import { type Fragment, sql } from '../../../core/db/sql.ts'

const DIRECTORY = `${RESERVED}/traces/`

/** Where the file of a trace is. The trigger files_of_traces reads the trace out of it too. */
export const traceFilePath = (traceId: string): string => `${DIRECTORY}${traceId}.json`

/** A subquery of the traces that the paths of files name, in the collation of their primary key: paths have another. */
export const tracesOfFiles = (fileIds: Fragment): Fragment => sql.fragment`
  select split_part(split_part(path, '/', 4), '.', 1) collate "default" from files
  where id in (${fileIds}) and starts_with(path, ${DIRECTORY})`
