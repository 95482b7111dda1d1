import { Badge, Button, Combobox, Group, Modal, Text, useCombobox } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { IconPlus, IconSelector } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { visible } from '#components/text.tsx'
import { useMe, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'
import { ProjectForm } from './home.tsx'

/** Projects that were opened last in this tab come first. */
const RECENT_MAX = 5
let recent: string[] = []

const NEW = 'new'

/** Shows the project of the view and switches to another. */
export function ProjectSwitcher({ projectId }: { projectId?: string }) {
  const { data } = useProjects()
  const { data: me } = useMe()
  const navigate = useNavigate()
  const [search, setSearch] = useState('')
  const [isFormOpen, form] = useDisclosure()
  const combobox = useCombobox({
    onDropdownOpen: () => combobox.focusSearchInput(),
    onDropdownClose: () => {
      combobox.resetSelectedOption()
      combobox.focusTarget()
      setSearch('')
    },
  })
  const projects = data?.data ?? []
  if (projects.length === 0) return null
  if (projectId) recent = [projectId, ...recent.filter(id => id !== projectId)].slice(0, RECENT_MAX)
  const rank = (id: string) => (recent.includes(id) ? recent.indexOf(id) : RECENT_MAX)
  const found = projects
    .filter(({ name }) => name.toLowerCase().includes(search.toLowerCase()))
    .toSorted((one, other) => rank(one.id) - rank(other.id))
  const current = projects.find(({ id }) => id === projectId)
  return (
    <>
      <Combobox
        store={combobox}
        width={280}
        position="bottom-start"
        onOptionSubmit={id => {
          combobox.closeDropdown()
          if (id === NEW) form.open()
          else void navigate({ to: '/p/$projectId/start', params: { projectId: id } })
        }}
      >
        <Combobox.Target targetType="button">
          <Button
            variant="default"
            size="sm"
            maw={240}
            miw={0}
            rightSection={<IconSelector size={16} />}
            onClick={() => combobox.toggleDropdown()}
            aria-label={`${strings.shell.project}: ${current ? visible(current.name) : strings.shell.noProject}`}
          >
            <Text truncate size="sm" fw={600} component="span">
              {current ? visible(current.name) : strings.shell.noProject}
            </Text>
          </Button>
        </Combobox.Target>
        <Combobox.Dropdown>
          <Combobox.Search
            value={search}
            onChange={event => setSearch(event.currentTarget.value)}
            placeholder={strings.shell.search}
            aria-label={strings.shell.search}
          />
          <Combobox.Options mah={320} style={{ overflowY: 'auto' }} aria-label={strings.shell.project}>
            {found.map(({ id, name, paused_at }) => (
              <Combobox.Option value={id} key={id} active={id === projectId}>
                <Group justify="space-between" wrap="nowrap" gap="xs">
                  <Text size="sm" truncate fw={id === projectId ? 700 : undefined}>
                    {visible(name)}
                  </Text>
                  {paused_at && (
                    <Badge color="yellow" size="sm" variant="default">
                      paused
                    </Badge>
                  )}
                </Group>
              </Combobox.Option>
            ))}
            {found.length === 0 && <Combobox.Empty>{strings.nothingFound}</Combobox.Empty>}
            {me?.role === 'admin' && (
              <Combobox.Option value={NEW}>
                <Group gap="xs">
                  <IconPlus size={16} />
                  <Text size="sm">{strings.shell.newProject}</Text>
                </Group>
              </Combobox.Option>
            )}
          </Combobox.Options>
        </Combobox.Dropdown>
      </Combobox>
      <Modal opened={isFormOpen} onClose={form.close} title={strings.shell.newProject}>
        <ProjectForm onDone={form.close} />
      </Modal>
    </>
  )
}
