import { call, download, list, stream, work } from '../../client/src/operation.ts'
import { type ApiCommand, type CommandTable, isDownload, takesProject } from './commands.ts'

/** Makes the function of a command that this version of the client may not have. */
export function functionOf(command: ApiCommand, table: CommandTable, isStream: boolean): any {
  const { method, path, fields, consumes, paged, stream: streamed, wait } = command
  const route = `${method} ${path}`
  const body = fields.filter(each => each.in === 'body')
  const query = fields.filter(each => each.in === 'query').map(each => each.name)
  const hasBody = method !== 'GET' && (body.length > 0 || consumes !== undefined)
  const shape = {
    body: consumes?.includes('multipart/form-data')
      ? ('form' as const)
      : consumes
        ? ('file' as const)
        : !hasBody
          ? ('none' as const)
          : body.some(each => each.required)
            ? undefined
            : ('optional' as const),
    ...(hasBody ? { query } : {}),
    project: takesProject(command),
  }
  const pathOf = (id: string | null) => (id === null ? undefined : table.byId(id)?.path)
  if (streamed && (isStream || !streamed.selected_by)) {
    const { events, last, resume, selected_by } = streamed
    return stream(
      route,
      { ...shape, events, last, resume: pathOf(resume) },
      selected_by ? { [selected_by.name]: true } : {},
    )
  }
  if (wait) return work(route, { ...shape, wait: { ...wait, poll: pathOf(wait.poll) ?? '' } })
  if (paged) return list(route, shape)
  return isDownload(command) ? download(route, shape) : call(route, shape)
}
