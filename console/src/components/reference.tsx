import { MultiSelect, Select } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import { isMusterError } from '@muster/client'
import { useQueries, useQuery } from '@tanstack/react-query'
import { type KeyboardEvent, type ReactNode, useState } from 'react'
import { api } from '#api.ts'
import type { Choice } from '#choices.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { EntityLink } from './entity-link.tsx'
import { REFERENCES, type ReferencedRow } from './reference-kinds.ts'
import { visible } from './text.tsx'

const texts = strings.reference

/** Records that a search offers. */
const OFFERED = 50
/** IDs outside of the offered records whose names are read. */
const NAMED = 50
const TYPING_MS = 200

const ID = /^[a-z][a-z_]*_[0-9a-z]{26}$/

/** Returns the name of a record, with what distinguishes it from others of that name. */
const nameOf = ({ id, name, title, username, filename, external_id, path }: ReferencedRow): string => {
  const main = name ?? title ?? username ?? path ?? filename ?? external_id ?? id
  const note = [path, external_id].find(each => each && each !== main)
  return visible(note ? `${main} (${note})` : main)
}

/** Reads the first records of a kind in the project whose names contain a text. */
function useFound(kind: string, text: string, isNeeded: boolean) {
  const projectId = useProjectId()
  const { list, search, isGlobal } = REFERENCES[kind]
  const mayList = usePermissions(projectId)(list)
  const filter = search ? text : ''
  const { data: rows = [], isFetching } = useQuery<ReferencedRow[]>({
    queryKey: ['references', kind, projectId, filter],
    queryFn: async ({ signal }) => {
      const args = { ...(isGlobal ? {} : { project_id: projectId }), ...(filter ? { [search as string]: filter } : {}) }
      return (await list(api, { ...args, limit: OFFERED }, { signal }).page()).data
    },
    enabled: mayList === true && isNeeded,
    staleTime: 10_000,
    placeholderData: previous => previous,
  })
  return { rows, isFetching, mayList }
}

/** Returns the names of records by their IDs: of the first ones of the project, and of others one by one. */
function useNames(kind: string, ids: readonly string[]) {
  const projectId = useProjectId()
  const permissions = usePermissions(projectId)
  const { get, isGlobal } = REFERENCES[kind]
  const isList = ids.length > 1
  const { rows, isFetching } = useFound(kind, '', isList)
  const others = isList && isFetching && rows.length === 0 ? [] : ids.filter(id => !rows.some(row => row.id === id))
  const read = others.slice(0, NAMED)
  const reads = useQueries({
    queries: read.map(id => ({
      queryKey: ['references', kind, 'id', id],
      queryFn: async ({ signal }: { signal: AbortSignal }) =>
        get(api, { [`${kind}_id`]: id, ...(kind === 'document' ? { project_id: projectId } : {}) }, { signal }),
      enabled: permissions(get) === true,
      staleTime: 10_000,
      retry: false,
    })),
  })
  const names = new Map(rows.map(row => [row.id, nameOf(row)]))
  const missing = new Set<string>()
  read.forEach((id, index) => {
    const { data, error } = reads[index]
    if (data) {
      const isForeign = !isGlobal && data.project_id !== projectId
      names.set(id, isForeign ? texts.foreign(nameOf(data)) : nameOf(data))
    } else if (data === null || (isMusterError(error) && error.status === 404)) missing.add(id)
  })
  return { names, missing }
}

/** Returns the label of a record: its name, or its ID, marked if the record is missing. */
const labelOf = (id: string, names: ReadonlyMap<string, string>, missing: ReadonlySet<string>): string =>
  names.get(id) ?? (missing.has(id) ? texts.missing(visible(id)) : visible(id))

type Field = {
  kind: string
  isMany: boolean
  entry: unknown
  onChange: (entry: unknown) => void
  common: { label: string; required: boolean; error?: string }
  /** Shown for kinds without a list, and to users who may not list the kind. */
  fallback: ReactNode
}

/** A field of records of a kind: a search by name, or an ID. */
export const ReferenceInput = (props: Field) => (props.kind in REFERENCES ? <Search {...props} /> : props.fallback)

function Search({ kind, isMany, entry, onChange, common, fallback }: Field) {
  const ids = (isMany ? ((entry as string[] | null) ?? []) : [entry as string]).filter(Boolean)
  const [typed, setTyped] = useState('')
  const [isOpen, setOpen] = useState(false)
  const text = typed.trim()
  const typedId = ID.test(text) && !ids.includes(text) ? text : undefined
  const { names, missing } = useNames(kind, typedId ? [...ids, typedId] : ids)
  // The text of a single choice is its name until another one is typed.
  const isName = !isMany && ids.length > 0 && typed === labelOf(ids[0], names, missing)
  const wanted = isName || typedId ? '' : text.toLowerCase()
  const [search] = useDebouncedValue(wanted, TYPING_MS)
  const { rows, isFetching, mayList } = useFound(kind, search, isOpen)
  if (mayList === false) return fallback
  for (const row of rows) if (!names.has(row.id)) names.set(row.id, nameOf(row))
  const offered = [...new Set([...(typedId ? [typedId] : []), ...rows.map(({ id }) => id), ...ids])]
  const data: Choice[] = offered.map(id => ({
    value: id,
    label: id === typedId && !names.has(id) && !missing.has(id) ? texts.byId(id) : labelOf(id, names, missing),
  }))
  const shared = {
    ...common,
    error: common.error ?? (ids.some(id => missing.has(id)) ? texts.missingText : undefined),
    data,
    searchable: true,
    searchValue: typed,
    onSearchChange: setTyped,
    clearable: !common.required,
    clearButtonProps: { 'aria-label': strings.form.clear(common.label) },
    openOnFocus: false,
    selectFirstOptionOnChange: true,
    onDropdownOpen: () => setOpen(true),
    nothingFoundMessage: isFetching || search !== wanted ? texts.searching : strings.nothingFound,
    maxDropdownHeight: 260,
    // Results that arrive after typing are not marked: Enter chooses the first one, and never submits the form.
    onKeyDown: (event: KeyboardEvent<HTMLInputElement>) => {
      if (event.key !== 'Enter' || wanted === '' || event.currentTarget.getAttribute('aria-activedescendant')) return
      event.preventDefault()
      const first = data.find(({ value, label }) => !ids.includes(value) && label.toLowerCase().includes(wanted))
      if (!first) return
      onChange(isMany ? [...ids, first.value] : first.value)
      if (isMany) setTyped('')
    },
    filter: ({ options }: { options: unknown[] }) =>
      (options as Choice[]).filter(({ value, label }) =>
        typedId ? value === typedId : label.toLowerCase().includes(wanted),
      ),
  }
  return isMany ? (
    <MultiSelect
      {...shared}
      value={ids}
      onChange={next => {
        onChange(next)
        setTyped('')
      }}
      onBlur={() => typedId && onChange([...ids, typedId])}
      hidePickedOptions
    />
  ) : (
    <Select
      {...shared}
      value={ids[0] ?? null}
      onChange={onChange}
      onBlur={() => typedId && onChange(typedId)}
      allowDeselect={false}
    />
  )
}

/** Records by their names, as links where the console has views of their kind. */
export function References({ kind, ids }: { kind: string; ids: readonly string[] }) {
  const projectId = useProjectId()
  const { names, missing } = useNames(kind, ids)
  return ids.map((id, index) => (
    <span key={id}>
      {index > 0 && ', '}
      <EntityLink kind={kind} id={id} projectId={projectId} name={labelOf(id, names, missing)} />
    </span>
  ))
}
