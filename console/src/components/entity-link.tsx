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

/** The ID or name of a record, as a link where the console has a view of its kind. */
export function EntityLink({
  kind,
  id,
  projectId,
  name,
}: {
  kind: string
  id: string
  projectId: string
  /** Shown in place of the ID. */
  name?: string
}) {
  const { routesByPath } = useRouter()
  const path = PATHS[kind] ?? `${kind.replaceAll('_', '-')}s`
  const hasView = Object.keys(routesByPath).some(each => each.startsWith(`/p/$projectId/${path}/$`))
  const className = name === undefined ? 'mono' : undefined
  if (!hasView) return <span className={className}>{visible(name ?? id)}</span>
  return (
    <Anchor component={Link} to={`/p/${projectId}/${path}/${id}`} className={className} fz="inherit" underline="always">
      {visible(name ?? id)}
    </Anchor>
  )
}
