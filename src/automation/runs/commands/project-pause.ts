import type { Tx } from '../../../core/db/writer.ts'
import { handler, type JobContext } from '../../../core/jobs/handler.ts'
import { lockPauseState } from '../../../identity/projects/store.ts'
import { projectRunWakeQueue, runQueue } from '../queue.ts'
import { nextLiveRuns, pauseWithProject, resumeWithProject } from '../store.ts'

/** Runs that are looked at in one transaction. */
const BATCH = 500

/** Has all live runs of a project looked at, once its pause has begun or ended. */
export async function wakeRunsOnPause(tx: Tx, projectId: string): Promise<void> {
  tx.send(projectRunWakeQueue, { project_id: projectId, after: '' })
}

/**
 * Gives a batch of the live runs of a project its pause, or takes back what its pause gave them, whichever holds now: two
 * of these that overtake each other do the same.
 */
const followBatch = ({ project_id, after }: { project_id: string; after: string }, { services }: JobContext) =>
  services.write(async tx => {
    const project = await lockPauseState(tx, project_id)
    if (!project) return
    const runs = await nextLiveRuns(tx, project_id, after, BATCH)
    if (runs.length === 0) return
    const ids = runs.map(({ id }) => id)
    if (project.paused_at === null) await resumeWithProject(tx, ids)
    else await pauseWithProject(tx, ids, project.pause_reason)
    for (const run_id of ids) tx.send(runQueue, { run_id, project_id })
    if (runs.length === BATCH) tx.send(projectRunWakeQueue, { project_id, after: ids[ids.length - 1] })
  })

export const projectPauseHandlers = [handler(projectRunWakeQueue, { concurrency: 1 }, followBatch)]
