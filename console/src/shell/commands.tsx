import { Combobox, Group, Modal, Text, useCombobox } from '@mantine/core'
import { IconFolder } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { visible } from '#components/text.tsx'
import { usePermissions, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'
import { maySee, NAVIGATION } from './navigation.ts'

/** Opens a view or a project by its name. */
export function CommandPalette({
  projectId,
  isOpen,
  onClose,
}: {
  projectId?: string
  isOpen: boolean
  onClose: () => void
}) {
  const [search, setSearch] = useState('')
  const { data } = useProjects()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const combobox = useCombobox({ opened: true })
  useEffect(() => {
    combobox.selectFirstOption()
  }, [search, isOpen])
  const entries = [
    ...(projectId ? NAVIGATION.filter(view => maySee(view, isAllowed)) : []).map(({ name, path, icon }) => ({
      name,
      to: `/p/${projectId}/${path}`,
      icon,
    })),
    ...(data?.data ?? []).map(({ id, name }) => ({ name, to: `/p/${id}/start`, icon: IconFolder })),
  ].filter(({ name }) => name.toLowerCase().includes(search.trim().toLowerCase()))
  const close = () => {
    setSearch('')
    onClose()
  }
  return (
    <Modal opened={isOpen} onClose={close} title={strings.shell.commands} yOffset="12vh" centered={false}>
      <Combobox
        store={combobox}
        onOptionSubmit={to => {
          close()
          void navigate({ to })
        }}
      >
        <Combobox.Search
          value={search}
          onChange={event => setSearch(event.currentTarget.value)}
          placeholder={strings.shell.commandsHint}
          aria-label={strings.shell.commandsHint}
          data-autofocus
        />
        <Combobox.Options mah={360} mt="sm" style={{ overflowY: 'auto' }} aria-label={strings.shell.commands}>
          {entries.map(({ name, to, icon: Icon }) => (
            <Combobox.Option value={to} key={to}>
              <Group gap="sm" wrap="nowrap">
                <Icon size={18} stroke={1.7} />
                <Text size="sm" truncate>
                  {visible(name)}
                </Text>
              </Group>
            </Combobox.Option>
          ))}
          {entries.length === 0 && <Combobox.Empty>{strings.nothingFound}</Combobox.Empty>}
        </Combobox.Options>
      </Combobox>
    </Modal>
  )
}
