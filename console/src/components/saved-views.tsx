import { Button, Menu, Modal, Stack, TextInput } from '@mantine/core'
import type { SavedView } from '@muster/client'
import { createSavedView, deleteSavedView, listSavedViews, updateSavedView } from '@muster/client/operations'
import { IconBookmark, IconCheck } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Question, useAction } from './actions.tsx'
import { useDraft, useSent } from './draft.tsx'
import { type Filters, useFilters } from './filters.ts'
import { SubmitRow } from './schema-form.tsx'
import { visible } from './text.tsx'

const texts = strings.savedViews

/** Saved views that a menu offers: all that a user can have in a project. */
const OFFERED = 100

/** Returns the filters of an address without its page. */
const filtersOf = ({ page: _page, ...filters }: Filters): Record<string, string> =>
  Object.fromEntries(Object.entries(filters).filter((entry): entry is [string, string] => Boolean(entry[1])))

const textOf = (query: Record<string, string>): string => JSON.stringify(Object.entries(query).toSorted())

type Dialog = 'save' | 'rename' | 'delete'

/** The menu of the filters that the user has saved for a list; each is a link. */
export function SavedViews({ view }: { view: string }) {
  const projectId = useProjectId()
  const query = filtersOf(useFilters().filters)
  const hasFilters = textOf(query) !== '[]'
  const [isOpen, setIsOpen] = useState(false)
  const [dialog, setDialog] = useState<Dialog>()
  const stale = [['saved-views', projectId, view]]
  const list = useQuery({
    queryKey: stale[0],
    queryFn: async ({ signal }) =>
      (await listSavedViews(api, { project_id: projectId, view, limit: OFFERED }, { signal }).page()).data,
    enabled: isOpen || dialog !== undefined,
    staleTime: 10_000,
  })
  const saved = list.data ?? []
  const current = saved.find(each => textOf(each.query) === textOf(query))
  const close = () => setDialog(undefined)
  const form = { view, query, saved, stale, onDone: close }
  return (
    <>
      {/* A placeholder for the first focus would be a child of the menu that is no item. */}
      <Menu opened={isOpen} onChange={setIsOpen} position="bottom-start" withInitialFocusPlaceholder={false}>
        <Menu.Target>
          <Button variant="default" leftSection={<IconBookmark size={16} />}>
            {texts.title}
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          {list.error ? <Menu.Label>{strings.failed.title}</Menu.Label> : null}
          {list.data?.length === 0 && <Menu.Label>{texts.none}</Menu.Label>}
          {saved.map(each => (
            <Menu.Item
              key={each.id}
              component={Link}
              to="."
              search={each.query as never}
              aria-current={each === current ? 'page' : undefined}
              leftSection={each === current ? <IconCheck size={16} /> : undefined}
            >
              {visible(each.name)}
            </Menu.Item>
          ))}
          <Menu.Divider />
          {/* It can have the focus, without which Escape would not close a menu of this item alone. */}
          <Menu.Item
            aria-disabled={hasFilters ? undefined : true}
            c={hasFilters ? undefined : 'dimmed'}
            closeMenuOnClick={hasFilters}
            onClick={() => hasFilters && setDialog('save')}
          >
            {texts.save}
          </Menu.Item>
          {current && (
            <>
              <Menu.Item onClick={() => setDialog('rename')}>{texts.rename(visible(current.name))}</Menu.Item>
              <Menu.Item onClick={() => setDialog('delete')}>{texts.remove(visible(current.name))}</Menu.Item>
            </>
          )}
        </Menu.Dropdown>
      </Menu>
      <Modal opened={dialog !== undefined} onClose={close} title={dialog && texts.titles[dialog]}>
        {dialog === 'save' && <SaveForm {...form} />}
        {dialog === 'rename' && current && <SaveForm {...form} renamed={current} />}
        {dialog === 'delete' && current && (
          <Question
            text={texts.removeText}
            label={strings.remove}
            color="red.9"
            run={async () => deleteSavedView(api, { saved_view_id: current.id })}
            {...{ stale, close }}
          />
        )}
      </Modal>
    </>
  )
}

/** Saves filters by a name, in place of those that have the name; with `renamed` changes the name of saved ones. */
function SaveForm({
  view,
  query,
  saved,
  renamed,
  stale,
  onDone,
}: {
  view: string
  query: Record<string, string>
  saved: SavedView[]
  renamed?: SavedView
  stale: string[][]
  onDone: () => void
}) {
  const projectId = useProjectId()
  const draft = useDraft(renamed ? `name of ${renamed.id}` : 'name of a view', renamed?.name ?? '')
  const name = draft.value.trim()
  const replaced = renamed ? undefined : saved.find(each => each.name === name)
  const save = useAction({
    run: async () => {
      if (renamed) return updateSavedView(api, { saved_view_id: renamed.id, name })
      if (replaced) return updateSavedView(api, { saved_view_id: replaced.id, query })
      return createSavedView(api, { project_id: projectId, view, name, query })
    },
    stale,
    onDone,
  })
  const submit = useSent(draft, save)
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        submit()
        save.mutate()
      }}
    >
      <Stack gap="md">
        <TextInput
          label={strings.name}
          value={draft.value}
          maxLength={100}
          onChange={event => draft.setValue(event.currentTarget.value)}
          data-autofocus
          required
        />
        <SubmitRow
          label={replaced ? texts.replace : strings.save}
          isPending={save.isPending}
          error={save.error}
          disabled={name === ''}
          onCancel={onDone}
        />
      </Stack>
    </form>
  )
}
