import { Anchor } from '@mantine/core'
import { Link, useRouter } from '@tanstack/react-router'
import { visible } from './text.tsx'

/** Paths of the views of records whose view is not named by the plural of their kind. */
const PATHS: Record<string, string> = {
  generation: 'traces',
  orchestration_run: 'runs',
  policy: 'policies',
  playbook_execution: 'executions',
}

/** The ID of a record, as a link where the console has a view of its kind. */
export function EntityLink({ kind, id, projectId }: { kind: string; id: string; projectId: string }) {
  const { routesByPath } = useRouter()
  const path = PATHS[kind] ?? `${kind.replaceAll('_', '-')}s`
  const hasView = Object.keys(routesByPath).some(each => each.startsWith(`/p/$projectId/${path}/$`))
  if (!hasView) return <span className="mono">{visible(id)}</span>
  return (
    <Anchor component={Link} to={`/p/${projectId}/${path}/${id}`} className="mono" underline="always">
      {visible(id)}
    </Anchor>
  )
}
