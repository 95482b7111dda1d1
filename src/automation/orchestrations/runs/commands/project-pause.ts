import { handler, type JobContext } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockPauseState } from '#identity/projects/store.ts'
import { projectRunWakeQueue, runQueue } from '../queue.ts'
import { listLiveRuns, pauseWithProject, resumeWithProject } from '../store.ts'

/** Runs handled in one transaction. */
const BATCH = 500

/** Wakes all live runs of a project after its pause has started or ended. */
export async function wakeRunsOnPause(tx: Tx, projectId: string): Promise<void> {
  tx.send(projectRunWakeQueue, { project_id: projectId, after: '' })
}

/**
 * Applies the current pause state of a project to a batch of its live runs. Reads the state itself, so overtaking
 * messages have the same effect.
 */
const applyPauseState = ({ project_id, after }: { project_id: string; after: string }, { services }: JobContext) =>
  services.write(async tx => {
    const project = await lockPauseState(tx, project_id)
    if (!project) return
    const runs = await listLiveRuns(tx, project_id, after, BATCH)
    if (runs.length === 0) return
    const ids = runs.map(({ id }) => id)
    if (project.paused_at === null) await resumeWithProject(tx, ids)
    else await pauseWithProject(tx, ids, project.pause_reason)
    for (const run_id of ids) tx.send(runQueue, { run_id, project_id })
    if (runs.length === BATCH) tx.send(projectRunWakeQueue, { project_id, after: ids[ids.length - 1] })
  })

export const projectPauseHandlers = [handler(projectRunWakeQueue, { concurrency: 1 }, applyPauseState)]
