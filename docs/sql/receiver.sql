insert into device (id, epoch, setting) values ($1, $2, $3)
on conflict (id) do update set epoch = excluded.epoch, setting = excluded.setting
where device.epoch <= excluded.epoch
returning id;
