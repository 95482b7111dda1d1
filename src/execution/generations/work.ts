import type { Services } from '../../core/process/services.ts'
import type { GenerationRow, Work } from './model.ts'

type Owner = Pick<GenerationRow, 'id' | 'project_id'>

/** What binds a sealed working state to its turn. */
const sealOf = ({ id, project_id }: Owner) => ({ kind: 'generation_work', id, project_id })

/** The working state of a turn as the database has it. */
export const sealWork = (services: Services, turn: Owner, work: Work): string =>
  services.secrets.seal(JSON.stringify(work), sealOf(turn))

/** The working state again; null when it cannot be decrypted. */
export function openWork(services: Services, turn: Owner, sealed: string): Work | null {
  const opened = services.secrets.open(sealed, sealOf(turn))
  return opened.ok ? (JSON.parse(opened.value) as Work) : null
}
